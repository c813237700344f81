from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamio.errors import FormatError
from streamio.index.table import SPLITS, VERSION, Entry, IndexTable, options_text
from streamio.storage.shards import Shard, ShardList

URL = "s3://b/_streamio/index.parquet"


def entry(name: str, records: tuple[int, ...] = (2, 3), version: str | None = "v") -> Entry:
    splits = {column: [*records] for column in SPLITS}
    return Entry(f"s3://b/{name}", 10, version, "jsonl", "{}", None, splits)


TABLE = IndexTable.of([entry("b"), entry("a", ()), entry("c", (7,), None)])


def test_it_comes_back_as_it_was_written() -> None:
    for folder in ("s3://b", "s3://other", ""):
        back = IndexTable.from_bytes(TABLE.to_bytes(folder), folder, URL)
        assert back.table.equals(TABLE.table)
    assert TABLE.table["url"].to_pylist() == ["s3://b/a", "s3://b/b", "s3://b/c"]
    assert TABLE.column("records").tolist() == [0, 5, 7]
    assert (TABLE.lengths().tolist(), TABLE.splits("split_wire").tolist()) == ([0, 2, 1], [2, 3, 7])


def test_a_folder_may_be_moved_with_its_index() -> None:
    moved = IndexTable.from_bytes(TABLE.to_bytes("s3://b"), "gs://c/d", "gs://c/d/_streamio/index.parquet")
    assert moved.table["url"].to_pylist() == ["gs://c/d/a", "gs://c/d/b", "gs://c/d/c"]
    fixed = IndexTable.from_bytes(TABLE.to_bytes("s3://b/a"), "gs://c/d", "gs://c/d/_streamio/index.parquet")
    assert fixed.table["url"].to_pylist() == ["s3://b/a", "s3://b/b", "s3://b/c"]


def test_shards_are_known_by_url_size_and_version() -> None:
    shards = [Shard("s3://b/a", 10, "v"), Shard("s3://b/b", 10, "w"), Shard("s3://b/c", 10), Shard("s3://b/d", 10, "v")]
    assert TABLE.rows_of(ShardList.of(shards)).tolist() == [0, -1, 2, -1]
    assert TABLE.rows_of(ShardList.of([replace(shards[0], size=11)])).tolist() == [-1]
    assert IndexTable.of([]).rows_of(ShardList.of(shards)).tolist() == [-1] * 4


def test_rows_of_another_format_or_options_are_told() -> None:
    rows = np.array([2, -1, 0])
    assert TABLE.made_by(rows, "jsonl", "{}").tolist() == [True, False, True]
    assert TABLE.made_by(rows, "text", "{}").tolist() == [False] * 3
    assert TABLE.made_by(rows, "jsonl", '{"a": 1}').tolist() == [False] * 3


def test_of_two_entries_of_a_shard_the_later_stays() -> None:
    joined = IndexTable.joined([TABLE, IndexTable.of([entry("b", (9,)), entry("d")])])
    assert joined.table["url"].to_pylist() == ["s3://b/a", "s3://b/b", "s3://b/c", "s3://b/d"]
    assert joined.column("records").tolist() == [0, 9, 7, 5]


@pytest.mark.parametrize(
    ("indexed", "text"), [(True, '{"columns": ["a", "b"], "delimiter": ";"}'), (False, '{"delimiter": ";"}')]
)
def test_options_count_as_far_as_counts_depend_on_them(indexed: bool, text: str) -> None:
    options = {"delimiter": ";", "columns": ("b", "a"), "decode": {"x": int}, "column_names": None}
    assert options_text(options, indexed=indexed) == text


def damaged(**columns: pa.Array) -> bytes:
    table = pq.read_table(io.BytesIO(TABLE.to_bytes()))
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no parquet",
        TABLE.to_bytes()[:-100],
        damaged(records=pa.array([0, 5, 8])),
        damaged(split_begin=pa.array([[], [1], [1]])),
        damaged(split_records=pa.array([["x"], [], []])),
    ],
)
def test_what_is_no_index_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"s3://b/_streamio/index.parquet is no index.*streamio index"):
        IndexTable.from_bytes(data, "s3://b", URL)


def test_parquet_without_our_mark_is_no_index() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"url": ["a"]}), sink)
    with pytest.raises(FormatError, match="is no index"):
        IndexTable.from_bytes(sink.getvalue(), "s3://b", URL)


def test_a_newer_index_is_refused() -> None:
    table = pq.read_table(io.BytesIO(TABLE.to_bytes()))
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"streamio.index": str(VERSION + 1)}), sink)
    with pytest.raises(FormatError, match=r"version 2, and this streamio reads up to 1: install a newer one"):
        IndexTable.from_bytes(sink.getvalue(), "s3://b", URL)
