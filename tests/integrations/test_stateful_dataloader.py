"""torchdata's StatefulDataLoader, on the same ranks and workers, goes on exactly; over the bare base contract too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import streamio
from tests.loader.data import ids_of, write_lines, write_parquet

SIZES = (17, 1, 30, 3, 9, 12)


class Rows(streamio.DistributedIterableDataset):
    """A class as pipelines have it: files dealt by the base contract, a status of (file, row) for each worker."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        super().__init__("rows", rank, world, remainder="deal")
        self.data_paths = self.get_data_paths(folder)
        self.set_epoch(3)

    def get_data_paths(self, folder: Path) -> list[str]:
        return sorted(map(str, folder.glob("*.parquet")))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        mine = self.get_data_paths_per_worker()
        assert mine is not None
        paths, worker = mine
        file, row = self._get_worker_data_status(worker) or (0, 0)
        for number in range(file, len(paths)):
            records = pq.read_table(paths[number]).to_pylist()
            for index in range(row if number == file else 0, len(records)):
                self._set_worker_resume_data_status(worker, (number, index + 1))
                yield records[index]


def streaming(folder: Path, rank: int, world: int) -> streamio.StreamingDataset:
    end: Any = "exact" if (folder / "p000.jsonl").exists() else None
    return streamio.StreamingDataset(folder, shuffle=True, window=11, seed=2, rank=rank, world_size=world, end=end)


def loader(dataset: Any, workers: int, every: int = 1) -> Any:
    return StatefulDataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=list, snapshot_every_n_steps=every)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(
    ("make", "write"),
    [(Rows, write_parquet), (streaming, write_parquet), (streaming, write_lines)],
    ids=["base", "parquet", "jsonl"],
)
def test_a_run_that_is_cut_twice_in_mid_epoch_sees_what_one_without_cuts_does(
    tmp_path: Path, make: Callable[..., Any], write: Any, workers: int
) -> None:
    write(tmp_path, SIZES)
    seen = []
    for rank in range(2):
        full = ids_of(loader(make(tmp_path, rank, 2), workers))
        rest: list[list[int]] = []
        state = None
        for steps in (2, 3, 100):
            part = loader(make(tmp_path, rank, 2), workers)
            if state is not None:
                part.load_state_dict(state)
            batches = iter(part)
            rest += ids_of(batch for _, batch in zip(range(steps), batches, strict=False))
            state = part.state_dict()
            del batches
        assert rest == full
        seen += [i for batch in full for i in batch]
    assert set(seen) == set(range(sum(SIZES)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_between_two_snapshots_is_exact_as_well(tmp_path: Path, workers: int) -> None:
    write_parquet(tmp_path, SIZES)
    full = ids_of(loader(streaming(tmp_path, 0, 1), workers))
    first = loader(streaming(tmp_path, 0, 1), workers, every=4)
    batches = iter(first)
    for _ in range(6):  # two behind a snapshot: these are read again, and left out
        next(batches)
    second = loader(streaming(tmp_path, 0, 1), workers, every=4)
    second.load_state_dict(first.state_dict())
    del batches
    assert ids_of(second) == full[6:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_at_the_end_of_an_epoch_is_followed_by_the_next_one(tmp_path: Path, workers: int) -> None:
    write_parquet(tmp_path, SIZES)
    whole = streaming(tmp_path, 0, 1)
    whole.set_epoch(1)
    first = loader(streaming(tmp_path, 0, 1), workers)
    assert len(ids_of(first)) == 18
    dataset = streaming(tmp_path, 0, 1)
    dataset.set_epoch(1)
    second = loader(dataset, workers)
    second.load_state_dict(first.state_dict())
    assert ids_of(second) == ids_of(loader(whole, workers))
