"""The loader's state in torch.save's files: plain values, read back with weights_only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import streamio
from streamio.errors import StatusError
from tests.loader.data import ids_of, write_lines, write_parquet


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("write", [write_parquet, write_lines])
def test_a_state_that_torch_saved_goes_on_and_needs_no_trust(tmp_path: Path, write: Any, workers: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data, (17, 0, 30, 3))
    model = torch.nn.Linear(2, 2)

    def loader() -> streamio.DataLoader:
        dataset = streamio.StreamingDataset(data, shuffle=True, window=11, seed=2)
        return streamio.DataLoader(dataset, 4, num_workers=workers)

    first = loader()
    batches = iter(first)
    for _ in range(5):
        next(batches)
    torch.save({"model": model.state_dict(), "loader": first.state_dict()}, tmp_path / "checkpoint.pt")
    expected = ids_of(batches)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    second = loader()
    second.load_state_dict(saved["loader"])
    assert second.step == 5
    assert ids_of(second) == expected


def streamed(folder: Path, rank: int, world: int, workers: int = 0) -> streamio.DataLoader:
    dataset = streamio.StreamingDataset(folder, end="exact", rank=rank, world_size=world)
    return streamio.DataLoader(dataset, 4, num_workers=workers)


@pytest.mark.parametrize("steps", [2, 100])
def test_a_file_of_one_rank_of_a_streamed_set_does_not_do_for_another_number_of_ranks(
    tmp_path: Path, steps: int
) -> None:
    write_lines(tmp_path, (17, 30, 3))
    first = streamed(tmp_path, 0, 2)
    batches = iter(first)
    for _ in range(steps):
        next(batches, None)
    second = streamed(tmp_path, 0, 1)
    second.load_state_dict(first.state_dict())
    with pytest.raises(StatusError, match="each rank's own state, or `Checkpoints`"):
        iter(second)


def test_a_file_for_each_rank_of_a_streamed_set_bears_other_workers_between_epochs(tmp_path: Path) -> None:
    write_lines(tmp_path, (17, 30, 3))
    seen = []
    for rank in range(2):
        first = streamed(tmp_path, rank, 2)
        list(first)
        second = streamed(tmp_path, rank, 2, workers=2)
        second.load_state_dict(first.state_dict())
        seen += [i for batch in ids_of(second) for i in batch]
        assert second.epoch == 2
    assert sorted(seen) == list(range(50))
