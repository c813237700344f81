"""In torchdata's StatefulDataLoader a resume on the same topology is exact, by the base contract's status alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import streamio
from tests.loader.data import ids_of, write_lines, write_parquet

SIZES = (17, 0, 30, 3)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_stateful_loader_goes_on_where_its_state_was_taken(tmp_path: Path, kind: str, workers: int) -> None:
    (write_parquet if kind == "parquet" else write_lines)(tmp_path, SIZES)

    def loader() -> Any:
        dataset = streamio.StreamingDataset(tmp_path, shuffle=True, window=11, seed=2)
        return StatefulDataLoader(dataset, batch_size=7, num_workers=workers, collate_fn=list)

    full = ids_of(loader())
    assert sorted(i for batch in full for i in batch) == list(range(50))
    for stop in range(0, len(full) + 1, 2):
        first = loader()
        iterator = iter(first)
        for _ in range(stop):
            next(iterator)
        second = loader()
        second.load_state_dict(first.state_dict())
        del iterator
        assert ids_of(second) == full[stop:]
