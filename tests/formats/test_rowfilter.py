"""Filters on rows: row groups left out by their statistics without a read, rows by their values, errors told."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import FormatError
from streamio.formats import parquet
from streamio.formats.arrow import Arrow
from streamio.formats.base import Bad, FilteringFormat, NamedFormat
from streamio.formats.filters import checked
from streamio.formats.parquet import Parquet
from streamio.formats.rowfilter import RowFilter
from streamio.partitions import find
from tests.formats.memory_source import MemorySource

URL = "s3://bucket/lang=en/a.parquet"
field = pc.field


def row_filter(option: Any, partitions: Any = None) -> RowFilter:
    filters = checked(option)
    assert filters is not None
    return RowFilter(filters, find(partitions, [URL], None))


def written(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def streamed(table: pa.Table, rows: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return bytes(sink.getvalue())


def wanted(rows: Any) -> list[dict[str, Any]]:
    """Records of the slots that are neither bad nor left out."""
    unwanted = set() if rows.left_out is None else set(rows.left_out.places.tolist())
    fine = [place for place in range(len(rows)) if place not in unwanted and place not in rows.bad]
    return list(rows.take(np.array(fine, np.int64)))


def table(rows: int = 100) -> pa.Table:
    return pa.table(
        {"id": range(rows), "text": [f"record {i}" for i in range(rows)], "score": [i % 7 for i in range(rows)]}
    )


@pytest.mark.parametrize("kind", [Parquet, Arrow])
def test_formats_say_that_they_can(kind: Any) -> None:
    assert isinstance(kind(), FilteringFormat)
    assert isinstance(kind(), NamedFormat)


def test_groups_that_statistics_rule_out_count_but_are_not_kept() -> None:
    made = Parquet(("text",), row_filter([("id", ">=", 42), ("id", "<", 60)]))
    counts = made.count(MemorySource(written(table(), row_group_size=10), URL))
    assert counts.records == (10,) * 10
    assert counts.kept == (False,) * 4 + (True, True) + (False,) * 4


def test_partition_values_rule_out_groups_too() -> None:
    source = MemorySource(written(table(), row_group_size=50), URL)
    for value, kept in [("en", (True, False)), ("de", (False, False))]:
        made = Parquet(None, row_filter((field("lang") == value) & (field("id") < 50), "hive"))
        assert made.count(source).kept == kept


def test_statistics_that_are_not_there_rule_out_nothing() -> None:
    data = written(table(), row_group_size=50, write_statistics=False)
    assert Parquet(None, row_filter([("id", "<", 0)])).count(MemorySource(data, URL)).kept == (True, True)


@pytest.mark.parametrize(
    ("kind", "write", "split"), [(Parquet, written, "row group"), (Arrow, streamed, "record batch")]
)
def test_rows_that_do_not_match_are_left_out_for_one_reason(kind: Any, write: Any, split: str) -> None:
    data = write(table(), row_group_size=50) if kind is Parquet else write(table(), 50)
    source = MemorySource(data, URL)
    made = kind(("text",), row_filter([("score", "==", 3), ("lang", "==", "en")], "hive"))
    made.count(source)
    rows = made.load(source, 1)
    assert len(rows) == 50
    assert wanted(rows) == [{"text": f"record {i}"} for i in range(50, 100) if i % 7 == 3]
    assert rows.left_out.why == Bad("filtered", "does not match filters=", f"{split} 1")
    assert not rows.bad


@pytest.mark.parametrize(("kind", "write"), [(Parquet, written), (Arrow, streamed)])
def test_only_the_columns_that_are_needed_are_read(kind: Any, write: Any) -> None:
    big = table(20_000).append_column("more", pa.array([b"%08d" % i * 20 for i in range(20_000)]))
    data = write(big, compression="none", use_dictionary=False) if kind is Parquet else write(big, 20_000)
    source = MemorySource(data, URL)
    made = kind(("id",), row_filter(field("score") == 3))
    counts = made.count(source)
    source.reads.clear()
    assert wanted(made.load(source, 0)) == [{"id": i} for i in range(20_000) if i % 7 == 3]
    assert sum(stop - start for start, stop in source.reads) == counts.wire[0] < 400_000 < len(data)


def test_a_large_group_is_filtered_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "PIECE", 4000)
    source = MemorySource(written(table(2000), row_group_size=2000), URL)
    pieces = list(Parquet(("id",), row_filter([("score", "==", 3)])).pieces(source, 0))
    assert len(pieces) > 5
    assert [record["id"] for piece in pieces for record in wanted(piece)] == [i for i in range(2000) if i % 7 == 3]


def test_a_row_that_cant_be_used_is_no_fault_where_it_is_not_wanted() -> None:
    text = pa.array([b"fine", b"\xff", b"\xff"]).view(pa.string())
    data = streamed(pa.table({"id": [0, 1, 2], "text": text}), 3)
    rows = Arrow(None, row_filter([("id", "<", 2)])).load(MemorySource(data, URL), 0)
    assert wanted(rows) == [{"id": 0, "text": "fine"}]
    assert {place: bad.reason for place, bad in rows.bad.items()} == {1: "decode"}
    assert rows.left_out.places.tolist() == [2]


def test_a_damaged_footer_never_ends_the_process() -> None:
    program = """
from streamio.errors import FormatError
from streamio.formats.base import CorruptError
from streamio.formats.parquet import Parquet
from tests.formats.memory_source import MemorySource
from tests.formats.test_rowfilter import URL, row_filter, table, written
whole = written(table(20), row_group_size=10, store_schema=False)
start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
filters = row_filter([("id", ">", 3), ("text", ">", "record 1"), ("score", "<", 6)])
told = []
for place in range(start, len(whole) - 8):
    for bit in (0x01, 0x10):
        data = bytearray(whole)
        data[place] ^= bit
        try:
            Parquet(None, filters).count(MemorySource(bytes(data), URL))
        except (CorruptError, FormatError) as error:
            told.append(str(error))
print(sum("has another type there" in text for text in told))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_names_of_an_expression_are_found_among_many_columns() -> None:
    columns = {f"c{number}": [number, None] for number in range(60)}
    data = written(pa.table({**columns, "we ird": ["x", "y"], "meta": [{"a": 1}, {"a": 2}]}))
    expression = ((field("c7") > 3) & field("we ird").isin(["x"])) | (field("meta", "a") == 2)
    made = pickle.loads(pickle.dumps(Parquet(("c3",), row_filter(expression))))
    source = MemorySource(data, URL)
    assert wanted(made.load(source, 0)) == [{"c3": 3}, {"c3": None}]
    assert made.filters._names == [("c7", "we ird", "meta")]


@pytest.mark.parametrize(
    ("option", "columns", "message"),
    [
        ([("nope", "==", 1)], None, r"does not go with s3://bucket/lang=en/a\.parquet: .*nope.* It has id: int64, "),
        (field("nope") == 1, ("text",), "nope"),
        ([("id", "==", "x")], None, r"\(int64, string\)"),
        (field("id") + 1, None, "gives values of type int64"),
        (pc.scalar(True), None, "names no column"),
        ([("lang", "==", "en"), ("lang", "==", "de")], None, "partition key"),
        (field("meta", "a") == 2, ("meta.b",), "needs all of the column 'meta'"),
    ],
)
def test_a_filter_that_does_not_go_with_the_columns_is_an_error(option: Any, columns: Any, message: str) -> None:
    meta = pa.array([{"a": 1, "b": 2}] * 10)
    data = written(table(10).append_column("meta", meta).append_column("lang", pa.array(["en"] * 10)))
    made = Parquet(columns, row_filter(option, "hive"))
    with pytest.raises(FormatError, match=message):
        made.count(MemorySource(data, URL))


def test_a_later_shard_without_the_column_is_told_too() -> None:
    made = Parquet(None, row_filter([("score", ">", 3)]))
    made.count(MemorySource(written(table()), URL))
    with pytest.raises(FormatError, match=r"b\.parquet: .*score"):
        made.count(MemorySource(written(table().drop_columns(["score"])), "s3://bucket/b.parquet"))


def test_a_filter_that_fails_on_values_is_an_error_and_no_drop() -> None:
    made = Parquet(None, row_filter(field("id") / field("score") > 2))
    source = MemorySource(written(table()), URL)
    with pytest.raises(FormatError, match=r"row group 0: filters= can't be evaluated: divide by zero"):
        made.load(source, 0)


VALUES = st.none() | st.integers(-3, 3)


@given(
    st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40),
    st.integers(1, 9),
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from("ab"), st.sampled_from(["==", "!=", "<", ">=", "in", "not in"]), st.integers(-3, 3)
            ),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_what_is_left_is_what_pyarrow_reads(values: Any, group: int, terms: Any) -> None:
    option = [[(name, op, [value, 1] if "in" in op else value) for name, op, value in one] for one in terms]
    rows = pa.table(
        {"id": range(len(values)), **{n: pa.array([v[i] for v in values], pa.int64()) for i, n in enumerate("ab")}}
    )
    data = written(rows, row_group_size=group)
    source = MemorySource(data, URL)
    made = Parquet(("id",), row_filter(option))
    counts = made.count(source)
    found = [
        record["id"] for split, kept in enumerate(counts.kept) if kept for record in wanted(made.load(source, split))
    ]
    assert found == pq.read_table(io.BytesIO(data), filters=option)["id"].to_pylist()


def test_a_filter_does_not_mind_columns_that_arrow_has_no_filter_for():
    union = pa.UnionArray.from_dense(pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([7, 8])])
    data = streamed(pa.table({"row": [0, 1], "u": union}), 2)
    for option in ([("row", ">", 0)], field("row") > 0):
        rows = Arrow(filters=row_filter(option)).load(MemorySource(data, URL), 0)
        assert wanted(rows) == [{"row": 1, "u": 8}]
    with pytest.raises(FormatError, match="filters= does not go with"):
        Arrow(filters=row_filter([("u", ">", 0)])).load(MemorySource(data, URL), 0)


@pytest.mark.parametrize("option", [[("big", ">", -1)], pc.divide(field("a"), field("b")) > 3])
def test_a_filter_that_fails_on_rows_is_no_damage_of_them(option):
    rows = pa.table({"big": pa.array([2**63, 1], pa.uint64()), "a": [1, 2], "b": [0, 1]})
    for made, data in ((Arrow, streamed(rows, 2)), (Parquet, written(rows))):
        with pytest.raises(FormatError, match="filters= can't be evaluated"):
            made(filters=row_filter(option)).load(MemorySource(data, URL), 0)
