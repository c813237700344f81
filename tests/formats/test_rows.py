"""Rows as records and as columns: what is taken, what is bad, and columns too long for 32-bit offsets."""

from __future__ import annotations

import datetime
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.formats import rows as rows_module
from streamio.formats.base import Bad, Columns, Row
from streamio.formats.rows import ArrowRows, Records, blocked, one_batch

BAD = Bad("csv", "two fields", "record 1")


def everything(rows):
    return rows.take(slice(0, len(rows)))


@given(data=st.data(), size=st.integers(0, 9))
def test_records_and_columns_are_taken_alike(data, size):
    records = [{"n": number, "t": "x" * number} for number in range(size)]
    batch = pa.RecordBatch.from_pylist(records, pa.schema([("n", pa.int64()), ("t", pa.string())]))
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=6, unique=True)) if size else []
    for rows in (Records(records), ArrowRows(batch)):
        assert rows.take(slice(start, stop)) == records[start:stop]
        assert rows.take(np.array(places, np.int64)) == [records[place] for place in places]
    assert ArrowRows(batch).arrow(slice(start, stop)).to_pylist() == records[start:stop]
    assert ArrowRows(batch).arrow(np.array(places, np.int64)).to_pylist() == [records[place] for place in places]


def test_records_of_columns_are_the_takers_own():
    rows = ArrowRows(pa.record_batch({"l": [[1], [2]]}))
    first, again = rows.take(np.array([0, 0]))
    first["l"].append(9)
    assert again == {"l": [1]} == everything(rows)[0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "bb", None], pa.string_view()),
        pa.array([b"a", b"bb", None], pa.binary_view()),
        pa.array([["a"], [], ["b", None]], pa.list_(pa.string_view())),
        pa.array([{"x": "a"}, {"x": None}, None], pa.struct([("x", pa.string_view())])),
        pc.run_end_encode(pa.array([1, 1, None])),
    ],
    ids=lambda column: str(column.type),
)
def test_single_rows_are_taken_of_views_and_run_ends(column):
    rows = ArrowRows(pa.record_batch({"x": column, "n": [0, 1, 2]}))
    values = [{"x": value, "n": number} for number, value in enumerate(column.to_pylist())]
    assert rows.take(np.array([2, 0])) == [values[2], values[0]]
    assert rows.arrow(np.array([2, 1])).to_pylist() == [values[2], values[1]]
    assert everything(rows) == values


def test_rows_keep_what_they_are_told_is_bad():
    rows = ArrowRows(pa.record_batch({"n": [0, None, 2]}), bad={1: BAD})
    assert rows.bad == {1: BAD}
    assert [everything(rows)[place]["n"] for place in (0, 2)] == [0, 2]
    assert rows.take(np.array([2, 1]))[0] == {"n": 2}
    assert isinstance(rows, Columns)


DAY = 86_400


@pytest.mark.parametrize(
    ("values", "kind", "bad"),
    [
        ([0, -719_162, 2_932_896, None], pa.date32(), []),
        ([0, -719_163, 2_932_897, None], pa.date32(), [1, 2]),
        ([0, -719_163 * DAY * 1000, 2_932_896 * DAY * 1000], pa.date64(), [1]),
        ([0, 2_932_897 * DAY - 1, 2_932_897 * DAY, None], pa.timestamp("s"), [2]),
        ([-719_162 * DAY * 1000 - 1, 0], pa.timestamp("ms"), [0]),
        ([0, 2_932_897 * DAY * 10**6], pa.timestamp("us", "UTC"), [1]),
        ([0, 1], pa.timestamp("us", "Nowhere/Land"), [0, 1]),
        ([None, None], pa.date32(), []),
        ([0, 10**15], pa.duration("s"), [1]),
    ],
)
def test_dates_and_times_that_python_does_not_have_are_bad(values, kind, bad):
    for column in (pa.array(values, kind), pa.array([[value] for value in values], pa.list_(kind))):
        rows = ArrowRows(pa.record_batch({"n": list(range(len(values))), "d": column}), first=10)
        assert list(rows.bad) == bad
        assert all((value.reason, value.position) == ("decode", f"record {10 + p}") for p, value in rows.bad.items())
        assert [record["n"] for p, record in enumerate(everything(rows)) if p not in bad] == [
            n for n in range(len(values)) if n not in bad
        ]


@pytest.mark.parametrize(
    ("kind", "usual"),
    [
        (pa.date32(), True),
        (pa.timestamp("us"), True),
        (pa.timestamp("ms", "Europe/Amsterdam"), True),
        (pa.timestamp("ns"), True),
        (pa.duration("s"), False),
    ],
)
def test_usual_dates_and_times_are_told_without_making_them(kind, usual):
    column = pa.array([0, 1000, None], pa.int32() if kind == pa.date32() else pa.int64())
    assert rows_module._is_usual(column.cast(kind)) == usual


def test_nanoseconds_without_pandas_are_bad_where_they_are_needed(monkeypatch):
    batch = pa.record_batch({"t": pa.array([1_000_000_000, 2_000, 7, None], pa.timestamp("ns"))})
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr(rows_module, "_has_pandas", lambda: False)
    monkeypatch.setattr(rows_module, "to_records", refuses_nanoseconds)
    assert list(ArrowRows(batch).bad) == [2]
    assert not ArrowRows(batch.slice(0, 2)).bad


def refuses_nanoseconds(batch):
    """As pyarrow does where pandas is not there, which it finds out once a process."""
    for value in batch["t"].cast(pa.int64()).to_pylist():
        if value is not None and value % 1000:
            raise ValueError("Nanosecond resolution temporal type 7 is not safely convertible to microseconds")


def test_dictionaries_come_as_their_values():
    colours = pa.array(["red", None, "blue"]).dictionary_encode()
    inner = pa.array([{"c": 1}, None, {"c": 3}])
    assert everything(ArrowRows(pa.record_batch({"c": colours, "s": inner}))) == [
        {"c": "red", "s": {"c": 1}},
        {"c": None, "s": None},
        {"c": "blue", "s": {"c": 3}},
    ]


def test_a_table_of_several_parts_becomes_one_batch():
    parts = [
        pa.record_batch({"n": [1, 2], "d": pa.array(["a", "b"]).dictionary_encode()}),
        pa.record_batch({"n": [3], "d": pa.array(["c"]).dictionary_encode()}),
    ]
    table = pa.Table.from_batches(parts)
    assert one_batch(table).to_pylist() == table.to_pylist()
    assert one_batch(table).schema == table.schema
    empty = table.schema.empty_table()
    assert one_batch(empty).num_rows == 0
    assert one_batch(empty).schema == table.schema


@pytest.mark.parametrize("nested", [False, True])
def test_columns_too_long_for_their_offsets_become_large_ones(nested):
    """Lists of nulls, which take no memory: two of 2**31 - 1 in one column."""
    most = (1 << 31) - 1
    lists = pa.ListArray.from_arrays(pa.array([0, most], pa.int32()), pa.nulls(most))
    part = pa.StructArray.from_arrays([lists], ["l"]) if nested else lists
    batch = one_batch(pa.table({"n": [1, 2], "x": pa.chunked_array([part, part])}))
    assert batch.schema.field("x").type == (
        pa.struct([("l", pa.large_list(pa.null()))]) if nested else pa.large_list(pa.null())
    )
    column = batch["x"].field("l") if nested else batch["x"]
    assert [len(value) for value in column] == [most, most]
    assert batch["n"].to_pylist() == [1, 2]


def test_rows_one_by_one_are_gathered_into_blocks():
    rows = [Row(number * 10, 5, BAD if number == 3 else {"n": number}) for number in range(7)]
    first, second = blocked(rows, 4)
    assert (first.index.tolist(), second.index.tolist()) == ([0, 10, 20, 30], [40, 50, 60])
    assert first.rows.bad == {3: BAD}
    assert second.nbytes.tolist() == [5, 5, 5]
    assert everything(second.rows) == [{"n": 4}, {"n": 5}, {"n": 6}]
    assert list(blocked([])) == []


def test_a_moment_in_a_zone_comes_with_it():
    moment = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.timezone.utc)
    (record,) = everything(
        ArrowRows(pa.record_batch({"t": pa.array([moment], pa.timestamp("us", "Europe/Amsterdam"))}))
    )
    assert record["t"] == moment
    assert record["t"].utcoffset() == datetime.timedelta(hours=2)


def test_large_rows_are_taken_one_by_one_with_the_same_values() -> None:
    batch = pa.record_batch(
        {
            "data": [bytes([i]) * 9000 for i in range(20)],
            "word": pa.array(["a", "b"] * 10).dictionary_encode(),
            "list": [[i, None] for i in range(20)],
            "hole": [None if i % 3 else i for i in range(20)],
        }
    )
    places = np.array([5, 0, 19, 5])
    assert ArrowRows(batch).take(places) == [batch.slice(place, 1).to_pylist()[0] for place in places.tolist()]
