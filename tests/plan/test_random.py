import numpy as np

from streamio.plan import generator, permutation


def test_a_permutation_is_the_same_on_every_platform_and_release() -> None:
    assert permutation(10, "splits", 42, 0, 0).tolist() == GOLDEN_10
    assert permutation(5, "window", 1, 2, 3).tolist() == GOLDEN_5


def test_a_permutation_holds_every_number_once() -> None:
    assert sorted(permutation(1000, "x").tolist()) == list(range(1000))
    assert permutation(0, "x").tolist() == []


def test_keys_are_told_apart_by_type_and_by_where_their_parts_end() -> None:
    orders = [permutation(50, *key).tolist() for key in [(1, 23), (12, 3), ("1", "23"), (1, "23"), ("123",), (123,)]]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_a_permutation_leaves_the_global_random_state_alone() -> None:
    np.random.seed(7)
    expected = np.random.rand()
    np.random.seed(7)
    permutation(100, "x")
    generator("x").random()
    assert np.random.rand() == expected


def test_a_generator_follows_from_its_key() -> None:
    assert generator("a", 1).integers(1 << 30) == generator("a", 1).integers(1 << 30)
    assert generator("a", 1).integers(1 << 30) != generator("a", 2).integers(1 << 30)


GOLDEN_10 = [0, 2, 9, 7, 6, 4, 8, 5, 1, 3]
GOLDEN_5 = [0, 2, 3, 1, 4]
