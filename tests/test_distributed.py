from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streamio.distributed import DistributedIterableDataset
from streamio.errors import TopologyError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
PATHS = [f"p{i:03d}" for i in range(23)]


class Paths(DistributedIterableDataset):
    """Yields (worker number, path), as a subclass for NeMo Automodel would read them."""

    def __init__(self, paths: Any = PATHS, **options: Any) -> None:
        super().__init__("demo", **options)
        self.data_paths = self.get_data_paths(paths)
        self.set_epoch()

    def get_data_paths(self, paths: Any) -> Any:
        return paths

    def __iter__(self) -> Iterator[Any]:
        dealt = self.get_data_paths_per_worker()
        assert dealt is not None
        paths, worker_id = dealt
        for path in paths:
            yield worker_id, path


def shuffled(paths: list[Any], seed: int) -> list[Any]:
    """What the contract says, written out without the class."""
    order = sorted(paths)
    random.Random(seed).shuffle(order)
    return order


def by_worker(dataset: Paths, workers: int) -> list[list[Any]]:
    found: list[list[Any]] = [[] for _ in range(workers)]
    for worker_id, path in DataLoader(dataset, batch_size=None, num_workers=workers):
        found[worker_id].append(path)
    return found


@pytest.mark.parametrize(
    ("seed", "first"),
    [
        (0, ["p020", "p021", "p011", "p014", "p010", "p000"]),
        (42, ["p016", "p015", "p002", "p014", "p005", "p013"]),
        (1234, ["p006", "p016", "p008", "p009", "p017", "p022"]),
    ],
)
def test_the_order_of_a_seed_never_changes(seed: int, first: list[str]) -> None:
    dataset = Paths()
    dataset.set_epoch(seed)
    assert dataset.data_paths_per_rank[:6] == first
    assert shuffled(PATHS, seed)[:6] == first


@pytest.mark.parametrize("seed", [0, 1, 42, 2**40])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 23])
def test_a_rank_takes_a_contiguous_block_of_the_shuffled_paths(seed: int, world_size: int) -> None:
    each = 23 // world_size
    for rank in range(world_size):
        dataset = Paths(local_rank=rank, world_size=world_size)
        dataset.set_epoch(seed)
        assert dataset.num_files_per_rank == each
        assert dataset.data_paths_per_rank == shuffled(PATHS, seed)[rank * each : (rank + 1) * each]
        assert dataset.get_data_paths_per_worker() == (dataset.data_paths_per_rank, 0)


@pytest.mark.parametrize(("world_size", "workers"), [(1, 1), (1, 3), (2, 2), (3, 4)])
def test_a_worker_takes_its_block_of_the_rank_reversed(world_size: int, workers: int) -> None:
    each = 23 // world_size
    part = each // workers
    for rank in range(world_size):
        block = shuffled(PATHS, 7)[rank * each : (rank + 1) * each]
        dataset = Paths(local_rank=rank, world_size=world_size)
        dataset.set_epoch(7)
        expected = [block[i * part : (i + 1) * part][::-1] for i in range(workers)]
        assert by_worker(dataset, workers) == expected


def test_the_order_of_the_listing_does_not_matter() -> None:
    assert Paths(PATHS[::-1]).data_paths_per_rank == Paths(PATHS).data_paths_per_rank


def test_set_epoch_is_by_default_seed_42_and_starts_from_the_sorted_paths_each_time() -> None:
    dataset = Paths()
    dataset.set_epoch(1)
    dataset.set_epoch()
    assert dataset.data_paths_per_rank == shuffled(PATHS, 42)


def test_rng_goes_on_from_where_the_shuffle_left_it() -> None:
    own = random.Random(42)
    own.shuffle(sorted(PATHS))
    assert Paths().rng.random() == own.random()


def test_tuples_sort_by_their_first_two_fields_and_keep_their_order_where_these_are_equal() -> None:
    paths = [("b", 1, {"any": "thing"}), ("a", 2, None), ("a", 1, 9), ("b", 1, {"another": 1}), ("a", 2, "x")]
    order = [("a", 1, 9), ("a", 2, None), ("a", 2, "x"), ("b", 1, {"any": "thing"}), ("b", 1, {"another": 1})]
    random.Random(42).shuffle(order)
    assert Paths(paths).data_paths_per_rank == order


@pytest.mark.parametrize("world_size", [1, 2, 5, 8, 40])
@pytest.mark.parametrize("seed", [0, 42])
def test_deal_gives_every_path_to_one_rank_in_order_and_evenly(world_size: int, seed: int) -> None:
    blocks = []
    for rank in range(world_size):
        dataset = Paths(local_rank=rank, world_size=world_size, remainder="deal")
        dataset.set_epoch(seed)
        assert dataset.num_files_per_rank == len(dataset.data_paths_per_rank)
        blocks.append(dataset.data_paths_per_rank)
    assert [path for block in blocks for path in block] == shuffled(PATHS, seed)
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_deal_gives_every_path_of_a_rank_to_one_worker_reversed_and_evenly(workers: int) -> None:
    dataset = Paths(PATHS[:4], remainder="deal")
    blocks = by_worker(dataset, workers)
    assert [path for block in blocks for path in block[::-1]] == dataset.data_paths_per_rank
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def test_where_nothing_is_left_over_drop_and_deal_are_the_same() -> None:
    drop, deal = (Paths(PATHS[:20], local_rank=1, world_size=2, remainder=remainder) for remainder in ("drop", "deal"))
    assert by_worker(drop, 2) == by_worker(deal, 2)


def test_a_tail_that_is_left_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger=__name__):
        Paths(local_rank=1, world_size=5)
    assert len(caplog.records) == 1
    assert "demo: 3 of 23 paths are left out" in caplog.text
    assert "remainder='deal'" in caplog.text


def test_nothing_is_told_where_nothing_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    Paths(world_size=23)
    Paths(world_size=5, remainder="deal")
    assert not caplog.records


def test_a_rank_without_a_path_under_deal_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert Paths(["a"], local_rank=1, world_size=2, remainder="deal").get_data_paths_per_worker() == ([], 0)
    assert "demo: rank 1 of 2 has none of the 1 paths" in caplog.text


def test_more_ranks_than_paths_is_an_error_on_every_rank() -> None:
    for rank in (0, 2):
        with pytest.raises(ValueError, match=r"demo: 2 paths for 3 ranks.*use at most 2 ranks"):
            Paths(["a", "b"], local_rank=rank, world_size=3)


class Told(Paths):
    def __iter__(self) -> Iterator[Any]:
        try:
            self.get_data_paths_per_worker()
        except ValueError as error:
            yield str(error)


def test_more_workers_than_paths_is_an_error_in_every_worker() -> None:
    told = list(DataLoader(Told(["a", "b"]), batch_size=None, num_workers=3))
    assert len(told) == 3
    for message in told:
        assert "demo, rank 0: 2 paths for 3 workers" in message
        assert "use at most 2 workers" in message


def test_before_there_are_paths_nothing_happens() -> None:
    dataset = DistributedIterableDataset("demo")
    dataset.set_epoch()
    assert dataset.get_data_paths_per_worker() is None


def test_no_paths_at_all_is_an_error_that_says_where_to_look() -> None:
    with pytest.raises(ValueError, match=r"demo: data_paths is empty.*get_data_paths"):
        Paths([])


@pytest.mark.parametrize(
    ("paths", "held"), [([b"a"], "bytes"), ([1, "a"], "int"), (["a", ("a", "b")], "both strings and tuples")]
)
def test_other_elements_than_strings_or_tuples_are_an_error_that_names_them(paths: Any, held: str) -> None:
    with pytest.raises(ValueError, match=f"demo: data_paths must hold .*, and holds {held}"):
        Paths(paths)


def test_reading_before_set_epoch_is_an_error() -> None:
    dataset = DistributedIterableDataset("demo", remainder="deal")
    dataset.data_paths = ["a"]
    with pytest.raises(ValueError, match=r"demo: call set_epoch\(\)"):
        dataset.get_data_paths_per_worker()


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_an_error(rank: int, world_size: int) -> None:
    with pytest.raises(TopologyError, match=f"local_rank={rank} is not a rank of world_size={world_size}"):
        DistributedIterableDataset("demo", rank, world_size)


def test_an_unknown_remainder_is_an_error() -> None:
    with pytest.raises(ValueError, match="use 'drop' or 'deal'"):
        DistributedIterableDataset("demo", remainder="keep")  # type: ignore[arg-type]


def test_what_a_subclass_must_write_is_named() -> None:
    dataset = DistributedIterableDataset("demo")
    with pytest.raises(NotImplementedError, match="get_data_paths"):
        dataset.get_data_paths()
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(dataset)


def test_the_arguments_are_those_of_the_existing_pipelines() -> None:
    dataset = DistributedIterableDataset("demo")
    assert (dataset.local_rank, dataset.world_size, dataset.num_workers) == (0, 1, 8)
    dataset = DistributedIterableDataset("demo", 3, 4, 2)
    assert (dataset.dataset_name, dataset.local_rank, dataset.world_size, dataset.num_workers) == ("demo", 3, 4, 2)
    assert dataset.data_paths is None
    assert dataset.data_status is None
    assert isinstance(dataset.rng, random.Random)


def test_a_status_is_copied_in_and_out() -> None:
    dataset = Paths()
    given = [[1, 2, 3], None]
    dataset.set_data_status(given)
    given[0] = "changed"  # type: ignore[call-overload]
    state = dataset.state_dict()
    assert state == {"data_status": [[1, 2, 3], None]}
    state["data_status"][0][0] = 99
    assert dataset.state_dict() == {"data_status": [[1, 2, 3], None]}
    reached = [4, 5, 6]
    dataset._set_worker_resume_data_status(1, reached)
    reached[0] = 99
    assert dataset.state_dict() == {"data_status": [[1, 2, 3], [4, 5, 6]]}


def test_setting_one_status_grows_the_list_with_none() -> None:
    dataset = Paths(num_workers=2)
    dataset._set_worker_resume_data_status(0, [1])
    assert dataset.state_dict() == {"data_status": [[1], None]}
    dataset._set_worker_resume_data_status(3, [2])
    assert dataset.state_dict() == {"data_status": [[1], None, None, [2]]}


def test_a_worker_without_a_status_starts_at_the_beginning() -> None:
    dataset = Paths()
    assert dataset._get_worker_data_status(0) is None
    dataset.load_state_dict({"data_status": [None, 7]})
    assert [dataset._get_worker_data_status(worker) for worker in range(3)] == [None, 7, None]


def test_loading_none_clears_the_status() -> None:
    dataset = Paths()
    dataset.load_state_dict({"data_status": [7]})
    dataset._set_worker_resume_data_status(0, 8)
    dataset.load_state_dict(None)
    assert dataset.state_dict() == {"data_status": None}
    assert dataset._get_worker_data_status(0) is None


def test_what_was_reached_does_not_move_where_the_next_iteration_starts() -> None:
    dataset = Paths()
    dataset.load_state_dict({"data_status": [7]})
    dataset._set_worker_resume_data_status(0, 8)
    assert dataset._get_worker_data_status(0) == 7
    assert dataset.state_dict() == {"data_status": [8]}


def test_a_status_that_a_subclass_assigns_itself_counts() -> None:
    dataset = Paths()
    dataset._set_worker_resume_data_status(0, 1)
    dataset.data_status = [5, 6]
    assert dataset.state_dict() == {"data_status": [5, 6]}


def test_a_dataset_pickles_with_its_order_and_status() -> None:
    dataset = Paths()
    dataset.load_state_dict({"data_status": [7]})
    copied = pickle.loads(pickle.dumps(dataset))
    assert copied.data_paths_per_rank == dataset.data_paths_per_rank
    assert copied.state_dict() == {"data_status": [7]}
    assert copied.rng.random() == dataset.rng.random()


def test_drops_are_counted_by_reason_and_the_first_three_and_every_nth_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = Paths()
    for number in range(1, 13):
        dataset._log_drop("json", "line %d of %s", number, "a.jsonl", every=5)
    dataset._log_drop("decode", "no image")
    assert dataset._drop_counters == {"json": 12, "decode": 1}
    assert [record.getMessage() for record in caplog.records] == [
        *(f"demo drop[json]={n}: line {n} of a.jsonl" for n in (1, 2, 3, 5, 10)),
        "demo drop[decode]=1: no image",
    ]


def test_drops_go_to_the_logger_of_the_subclass_at_warning_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    Paths()._log_drop("json", "bad")
    assert caplog.records[0].name == __name__
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].filename == "test_distributed.py"


def test_a_drop_is_logged_every_hundredth_time_by_default(caplog: pytest.LogCaptureFixture) -> None:
    dataset = Paths()
    for _ in range(200):
        dataset._log_drop("json", "bad")
    assert [record.args[2] for record in caplog.records if record.args] == [1, 2, 3, 100, 200]


def test_the_exception_is_logged_where_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    dataset = Paths()
    try:
        raise KeyError("text")
    except KeyError:
        dataset._log_drop("a", "without")
        dataset._log_drop("b", "with", exc_info=True)
    assert caplog.records[0].exc_info in (None, False)
    assert "KeyError: 'text'" in caplog.text


@pytest.mark.parametrize(
    ("message", "args", "shown"),
    [("100% bad", (), "100% bad"), ("bad %d", ("x",), "bad %d ('x',)"), ("bad", (1,), "bad (1,)")],
)
def test_a_message_that_does_not_fit_its_values_does_not_stop_the_data(
    message: str, args: tuple[Any, ...], shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    Paths()._log_drop("json", message, *args)
    assert caplog.records[0].getMessage() == f"demo drop[json]=1: {shown}"
