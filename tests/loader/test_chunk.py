"""Runs of decoded slots: gathered from splits in any order, cut and joined, as records and as columns alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import FormatError
from streamio.formats import ArrowRows, Bad, Records
from streamio.formats.rows import to_records
from streamio.loader.chunk import Chunk, gathered, join, joined

LOST = Bad("corrupt", "all of it", "row group 1")


def name(split: int, number: int) -> dict[str, Any]:
    return {"split": split, "number": number}


@st.composite
def held_splits(draw: st.DrawFn, columnar: bool) -> dict[int, Any]:
    """Splits, some of them lost, some with rows that are bad."""
    held: dict[int, Any] = {}
    for split in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 8))
        if draw(st.integers(0, 4)) == 0:
            held[split] = LOST
            continue
        bad = {n: Bad("x", str(n), "") for n in draw(st.sets(st.integers(0, count - 1), max_size=3))}
        records = [name(split, n) for n in range(count)]
        if columnar:
            rows = ArrowRows(pa.RecordBatch.from_pylist(records))
            rows.bad = bad
            held[split] = rows
        else:
            held[split] = Records(records, bad)
    return held


def expected(held: dict[int, Any], slots: list[tuple[int, int]]) -> list[Any]:
    return [
        rows if isinstance(rows := held[split], Bad) else rows.bad.get(number, name(split, number))
        for split, number in slots
    ]


def shown(chunk: Chunk) -> list[Any]:
    """What a chunk says of each slot."""
    good = chunk.good()
    records = iter(good if isinstance(good, list) else to_records(good))
    return [chunk.bad[slot] if slot in chunk.bad else next(records) for slot in range(len(chunk))]


@given(st.data(), st.booleans(), st.booleans())
def test_gathered_slots_are_those_asked_for_in_their_order(data: st.DataObject, columnar: bool, ordered: bool) -> None:
    held = data.draw(held_splits(columnar))
    every = [(s, n) for s, rows in held.items() for n in range(8 if isinstance(rows, Bad) else len(rows))]
    slots = every[data.draw(st.integers(0, len(every) - 1)) :] if ordered else data.draw(st.permutations(every))
    split, number = (np.array(column, np.int64) for column in zip(*slots, strict=True))
    first = np.arange(len(held), dtype=np.int64) * 100
    chunk = gathered(held, split, number, first, columnar=columnar)
    assert shown(chunk) == expected(held, slots)
    assert chunk.index.tolist() == [s * 100 + n for s, n in slots]

    at = data.draw(st.integers(0, len(slots)))
    parts = [part for part in (chunk.cut(0, at), chunk.cut(at, len(slots))) if len(part)]
    assert [value for part in parts for value in shown(part)] == shown(chunk)
    assert shown(joined(parts)) == shown(chunk)
    assert joined(parts).number.tolist() == number.tolist()


def test_columns_of_neighbouring_slots_are_not_copied() -> None:
    batch = pa.record_batch({"x": np.arange(100)})
    held = {0: ArrowRows(batch)}
    ten = np.arange(10, 20)
    chunk = gathered(held, np.zeros(10, np.int64), ten, np.zeros(1, np.int64), columnar=True)
    part: Any = chunk.cut(2, 5).values
    assert part["x"].to_pylist() == [12, 13, 14]
    assert part["x"].buffers()[1].address == batch["x"].buffers()[1].address


def test_columns_that_came_later_are_null_before() -> None:
    one, two = pa.record_batch({"a": [1]}), pa.record_batch({"a": [2.5], "b": ["x"]})
    assert to_records(join([one, two])) == [{"a": 1.0, "b": None}, {"a": 2.5, "b": "x"}]


def test_types_that_do_not_go_together_are_told() -> None:
    with pytest.raises(FormatError, match=r"types that do not go together.*columns="):
        join([pa.record_batch({"a": [1]}), pa.record_batch({"a": [{"b": 1}]})])
