import pytest

from streamio.errors import TopologyError
from streamio.plan import Grid


def test_rows_share_a_batch_evenly() -> None:
    grid = Grid(rows=4, columns=2, batch=12)
    assert grid.share == 3
    assert [list(grid.rows_of(rank, 2)) for rank in range(2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("batch", "near"), [(10, "8 or 12"), (3, "4"), (15, "12 or 16")])
def test_a_batch_that_rows_cant_share_is_refused_with_the_nearest_that_they_can(batch: int, near: str) -> None:
    with pytest.raises(TopologyError, match=f"The nearest that can: {near}"):
        Grid(4, 1, batch)


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_numbers_below_one_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(TopologyError, match="1 or more"):
        Grid(*wrong)


def test_ranks_that_do_not_divide_the_rows_are_refused() -> None:
    with pytest.raises(TopologyError, match="3 ranks can't share 4 rows"):
        Grid(4, 1, 4).rows_of(0, 3)


@pytest.mark.parametrize(
    ("columns", "wanted", "used"), [(4, 4, 4), (4, 3, 2), (6, 5, 3), (4, 0, 1), (1, 8, 1), (5, 4, 1)]
)
def test_workers_are_the_largest_divisor_of_the_columns(columns: int, wanted: int, used: int) -> None:
    assert Grid(1, columns, 1).workers(wanted) == used
