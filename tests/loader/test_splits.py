"""Splits too large for memory are decoded piece by piece, and give what whole ones give."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamio
from streamio.formats import ArrowRows, CorruptError, Rows
from streamio.loader import splits
from streamio.loader.splits import Pieces


class Source:
    """Pieces of ten rows, perhaps with an end before their time; counts how many were made."""

    def __init__(self, records: int, damaged_at: int | None = None, last: int | None = None) -> None:
        self.records, self.damaged_at, self.last = records, damaged_at, last
        self.made = 0
        self.closed = False

    def pieces(self) -> Iterator[Rows]:
        try:
            for start in range(0, self.last or self.records, 10):
                if self.damaged_at is not None and start >= self.damaged_at:
                    raise CorruptError("a page is damaged", "row group 0")
                self.made += 1
                yield ArrowRows(pa.record_batch({"n": range(start, min(start + 10, self.records))}))
        finally:
            self.closed = True


def numbers(pieces: Pieces, places: list[int]) -> list[int]:
    return [record["n"] for record in pieces.take(np.array(places, np.int64))]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=8))
def test_any_rows_within_reach_come_in_any_order(moves: list[tuple[int, int]]) -> None:
    source = Source(95)
    pieces = Pieces(source.pieces(), 95, 0)
    low = furthest = 0
    for forward, length in moves:
        low = min(low + forward, 94)
        high = min(low + length, 95)
        assert pieces.reach(low, high)
        wanted = random.Random(high).sample(range(low, high), high - low)
        assert numbers(pieces, wanted) == wanted
        assert pieces.arrow(np.array(wanted, np.int64))["n"].to_pylist() == wanted
        assert pieces.arrow(slice(low, high))["n"].to_pylist() == list(range(low, high))
        furthest = max(furthest, high)
        assert source.made == -(-furthest // 10)  # no further than asked for
    assert not pieces.bad


def test_what_lies_before_the_reach_is_let_go_and_can_not_come_back() -> None:
    pieces = Pieces(Source(100).pieces(), 100, 0)
    assert pieces.reach(55, 60)
    assert len(pieces._held) == 1
    assert not pieces.reach(45, 60)


@pytest.mark.parametrize("begin", [0, 25, 55])
def test_damage_takes_the_rest_with_it_wherever_reading_began(begin: int) -> None:
    pieces = Pieces(Source(100, damaged_at=40).pieces(), 100, 7)
    pieces.reach(begin, 80)
    assert sorted(pieces.bad) == list(range(max(begin, 40), 80))
    assert {bad.position for bad in pieces.bad.values()} == {"row group 0"}
    pieces.reach(max(begin, 60), 100)
    assert sorted(pieces.bad) == list(range(max(begin, 60), 100))


def test_fewer_rows_than_were_told_are_damage() -> None:
    pieces = Pieces(Source(100, last=30).pieces(), 100, 7)
    pieces.reach(20, 40)
    assert sorted(pieces.bad) == list(range(30, 40))
    assert "30 records where its footer says 100" in pieces.bad[35].message


def test_closing_ends_the_read() -> None:
    source = Source(100)
    pieces = Pieces(source.pieces(), 100, 0)
    pieces.reach(0, 5)
    pieces.close()
    assert source.closed


@pytest.fixture
def shards(tmp_path: Path) -> str:
    start = 0
    for number, count in enumerate((3000, 400, 2500)):
        ids = np.arange(start, start + count)
        table = pa.table({"id": ids, "text": [f"{i:060}" for i in ids]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=2000, data_page_size=1024)
        start += count
    return str(tmp_path)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("output", ["records", "arrow"])
def test_an_epoch_in_pieces_is_the_same_as_one_of_whole_splits(
    shards: str, shuffle: bool, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def epoch(stop: int | None = None, state: dict[str, str] | None = None) -> tuple[list[list[int]], dict[str, str]]:
        dataset = streamio.StreamingDataset(shards, shuffle=shuffle, window=700, seed=5)
        loader = streamio.DataLoader(dataset, 50, output=output)  # type: ignore[arg-type]
        if state is not None:
            loader.load_state_dict(state)
        got = []
        for batch in loader:
            got.append([record["id"] for record in batch] if output == "records" else batch["id"].to_pylist())
            if len(got) == stop:
                break
        return got, loader.state_dict()

    whole, _ = epoch()
    monkeypatch.setattr(splits, "LARGE", 0)
    assert epoch()[0] == whole
    begun, state = epoch(stop=33)
    assert begun + epoch(state=state)[0] == whole
