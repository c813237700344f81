"""`max_records=`: an epoch of the first records alone, in the order of the listing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import streamio
from streamio.errors import FormatError, StatusError
from streamio.loader import splits
from streamio.plan import IndexedSplits
from tests.loader.data import write_lines, write_parquet

SIZES = (20, 0, 13, 30)


def loader_of(folder: Path, records: Any, workers: int = 0, **options: Any) -> streamio.DataLoader:
    dataset = streamio.StreamingDataset(folder, max_records=records, **{"end": "exact", **options})
    return streamio.DataLoader(dataset, 4, num_workers=workers)


def ids(loader: streamio.DataLoader) -> list[int]:
    return [record["id"] for batch in loader for record in batch]


@pytest.mark.parametrize("records", [1, 6, 7, 20, 21, 27, 33, 60, 62, 63, 64, 10**12])
def test_the_first_records_are_the_epoch(tmp_path: Path, records: int) -> None:
    write_parquet(tmp_path, SIZES)
    loader = loader_of(tmp_path, records)
    wanted = list(range(min(records, 63)))
    assert ids(loader) == wanted
    assert len(loader) == -(-len(wanted) // 4)
    assert loader.stats().dropped == {}
    assert sorted(ids(loader_of(tmp_path, records, 2, shuffle=True, seed=3))) == wanted
    ranks = [ids(loader_of(tmp_path, records, shuffle=True, rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == wanted


def test_a_row_group_that_is_cut_tells_what_it_holds(tmp_path: Path) -> None:
    write_parquet(tmp_path, (1000,), rows=500)
    whole, part = (streamio.StreamingDataset(tmp_path, max_records=records).prepare().splits for records in (None, 501))
    assert isinstance(whole, IndexedSplits)
    assert isinstance(part, IndexedSplits)
    assert part.records.tolist() == [500, 1]
    assert part.stored.tolist() == whole.stored.tolist() == whole.records.tolist()
    assert part.record_bytes == whole.record_bytes  # windows are made by it


def test_a_row_group_that_is_read_in_pieces_is_cut_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "LARGE", 1)
    write_parquet(tmp_path, (1000,), rows=500)
    loader = loader_of(tmp_path, 777, shuffle=True, window=50)
    assert sorted(ids(loader)) == list(range(777))
    assert loader.stats().dropped == {}


def test_it_counts_before_filters_look_at_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES, rows=20)
    assert ids(loader_of(tmp_path, 30, filters=[("id", "in", [5, 25, 29, 31])])) == [5, 25, 29]


def test_what_is_not_counted_is_refused_with_what_is_and_with_the_index(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    with pytest.raises(FormatError, match=r"max_records=5 .*jsonl shards.*p000\.jsonl.*parquet.*streamio index"):
        iter(loader_of(tmp_path, 5))
    streamio.build_index(str(tmp_path))
    assert ids(loader_of(tmp_path, 25)) == list(range(25))


def test_a_status_is_of_so_many_records(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    checkpoints = streamio.Checkpoints(tmp_path / "runs")
    loader = loader_of(tmp_path / "*.parquet", 40)
    iterator = iter(loader)
    seen = [record["id"] for batch in islice(iterator, 5) for record in batch]
    checkpoints.save(loader)
    iterator.close()
    same = loader_of(tmp_path / "*.parquet", 40)
    assert checkpoints.resume(same) == 5
    assert seen + ids(same) == list(range(40))
    for records in (None, 41):
        with pytest.raises(StatusError, match=rf"max_records was 40 and is {records} now \(allow=\['max_records'\]"):
            checkpoints.resume(loader_of(tmp_path / "*.parquet", records))
    other = loader_of(tmp_path / "*.parquet", 50)
    checkpoints.resume(other, allow=["max_records"])
    assert seen + ids(other) == list(range(50))


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-3, ValueError), (2.5, TypeError), ("5", TypeError)])
def test_a_number_that_cant_be_is_refused(tmp_path: Path, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_records="):
        loader_of(tmp_path, value)
