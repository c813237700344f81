"""Hive-partitioned folders become columns of every format: typed, null, and never over a column of the file."""

from __future__ import annotations

import datetime
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamio
from streamio.errors import FormatError
from streamio.partitions import NULL, find, told_by


def write(path: Path, ids: range, **more: Any) -> None:
    """Records with these ids in the format that the suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": i, "text": f"record {i}", **more} for i in ids]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.Table.from_pylist(rows).schema) as writer:
            writer.write_table(pa.Table.from_pylist(rows), max_chunksize=3)
    elif path.suffix == ".csv":
        path.write_text("".join(f"{line}\n" for line in ["id,text", *(f"{r['id']},{r['text']}" for r in rows)]))
    elif path.suffix == ".tar":
        with tarfile.open(path, "w") as archive:
            for row in rows:
                data = json.dumps(row["id"]).encode()
                member = tarfile.TarInfo(f"{row['id']:04}.id")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def layout(folder: Path, suffix: str) -> Path:
    """Two keys, one value of which is null."""
    places = [("en", "2023"), ("en", "2024"), ("d%65", NULL)]
    for number, (lang, year) in enumerate(places):
        write(folder / f"lang={lang}" / f"year={year}" / f"a{suffix}", range(number * 10, number * 10 + 10))
    return folder


EXPECTED = {"lang": ["en"] * 20 + ["de"] * 10, "year": [2023] * 10 + [2024] * 10 + [None] * 10}


def by_id(batches: Any) -> list[dict[str, Any]]:
    return sorted((record for batch in batches for record in batch), key=lambda record: int(record["id"]))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".csv", ".tar"])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_format_carries_them(tmp_path: Path, suffix: str, workers: int) -> None:
    options: dict[str, Any] = {"decode": {"id": int}} if suffix == ".tar" else {}
    dataset = streamio.StreamingDataset(layout(tmp_path, suffix), partitions={"year": int}, shuffle=True, **options)
    records = by_id(streamio.DataLoader(dataset, 4, num_workers=workers))
    assert [int(record["id"]) for record in records] == [*range(30)]
    assert {key: [record[key] for record in records] for key in EXPECTED} == EXPECTED


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_map_sees_them(tmp_path: Path, suffix: str) -> None:
    seen = []
    dataset = streamio.StreamingDataset(
        layout(tmp_path, suffix), partitions="hive", map=lambda record: seen.append(dict(record)) or record
    )
    list(streamio.DataLoader(dataset, 4))
    assert [record["year"] for record in seen] == [None] * 10 + ["2023"] * 10 + ["2024"] * 10  # URLs sorted: d%65 first


def test_batches_of_columns_have_typed_ones_and_strings_as_dictionaries(tmp_path: Path) -> None:
    dataset = streamio.StreamingDataset(
        layout(tmp_path, ".parquet"), partitions={"year": "int32"}, provenance=True, shuffle=True, window=30
    )
    batches = list(streamio.DataLoader(dataset, 10, output="arrow"))
    assert batches[0].schema.field("year").type == pa.int32()
    assert batches[0].schema.field("lang").type == pa.dictionary(pa.int32(), pa.string())
    assert batches[0].schema.names == ["id", "text", "lang", "year", "__shard__", "__index__"]
    rows = pa.Table.from_batches(batches).sort_by("id").to_pydict()
    assert {key: rows[key] for key in EXPECTED} == EXPECTED
    assert [f"lang={quote(lang)}" in url for lang, url in zip(rows["lang"], rows["__shard__"], strict=True)][:20] == [
        True
    ] * 20


def test_they_are_those_of_pyarrow(tmp_path: Path) -> None:
    layout(tmp_path, ".parquet")
    expected = ds.dataset(tmp_path, partitioning=ds.HivePartitioning.discover()).to_table().sort_by("id").to_pylist()
    records = by_id(streamio.DataLoader(streamio.StreamingDataset(tmp_path, partitions={"year": "int32"}), 7))
    assert records == expected


def test_without_the_option_folders_are_folders(tmp_path: Path) -> None:
    dataset = streamio.StreamingDataset(layout(tmp_path, ".jsonl"))
    assert next(iter(streamio.DataLoader(dataset, 1)))[0].keys() == {"id", "text"}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_columns_may_name_them_and_leaves_out_the_others(tmp_path: Path, suffix: str) -> None:
    dataset = streamio.StreamingDataset(layout(tmp_path, suffix), partitions="hive", columns=["lang", "id"])
    assert by_id(streamio.DataLoader(dataset, 4))[0] == {"id": 0, "lang": "en"}
    dataset = streamio.StreamingDataset(layout(tmp_path, suffix), partitions="hive", columns=["text"])
    assert next(iter(streamio.DataLoader(dataset, 1)))[0].keys() == {"text"}


def test_columns_of_nothing_but_keys_are_refused(tmp_path: Path) -> None:
    dataset = streamio.StreamingDataset(layout(tmp_path, ".jsonl"), partitions="hive", columns=["lang", "year"])
    with pytest.raises(FormatError, match="nothing but the partition keys 'lang', 'year'"):
        dataset.prepare()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_column_of_a_keys_name_is_an_error_before_the_first_read(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "lang=en" / f"a{suffix}", range(3), lang="fr")
    for columns in (None, ["id", "lang"]):
        dataset = streamio.StreamingDataset(tmp_path, partitions="hive", columns=columns)
        with pytest.raises(FormatError, match=rf"lang=en/a\{suffix} has a column 'lang'.*partitions=None.*columns="):
            dataset.prepare()
    records = by_id(streamio.DataLoader(streamio.StreamingDataset(tmp_path, partitions="hive", columns=["id"]), 4))
    assert records == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_a_records_key_of_that_name_is_an_error_where_a_record_has_it(tmp_path: Path) -> None:
    write(tmp_path / "lang=en" / "a.jsonl", range(3))
    write(tmp_path / "lang=fr" / "a.jsonl", range(3), lang="fr")
    iterator = iter(streamio.DataLoader(streamio.StreamingDataset(tmp_path, partitions="hive"), 3))
    next(iterator)
    with pytest.raises(FormatError, match=r"lang=fr/a\.jsonl has a column 'lang'"):
        next(iterator)


def test_a_value_of_another_type_names_url_key_and_value(tmp_path: Path) -> None:
    for year in ("2023", "20x4"):
        write(tmp_path / f"year={year}" / "a.jsonl", range(3))
    with pytest.raises(
        FormatError, match=r"year=20x4/a\.jsonl: the value '20x4' of the partition key 'year' is no int64"
    ):
        streamio.StreamingDataset(tmp_path, partitions={"year": int}).prepare()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "007", 7),
        (float, "0.5", 0.5),
        (bool, "true", True),
        (str, "007", "007"),
        ("date32", "2024-02-29", datetime.date(2024, 2, 29)),
        (pa.dictionary(pa.int32(), pa.string()), "x", "x"),
        (pa.timestamp("us"), "2024-02-29 10%3A00%3A00", datetime.datetime(2024, 2, 29, 10)),  # noqa: DTZ001 - as pyarrow has it
    ],
)
def test_types_may_be_pythons_pyarrows_or_their_names(kind: Any, text: str, value: Any) -> None:
    found = find({"key": kind}, [f"s3://bucket/key={text}/a.jsonl"], None)
    assert found is not None
    assert pickle.loads(pickle.dumps(found)).values(f"s3://bucket/key={text}/a.jsonl") == {"key": value}


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        (["s3://b/a=1/x", "s3://b/x"], "s3://b/a=1/x has 'a' and s3://b/x has none"),
        (["s3://b/a=1/b=2/x", "s3://b/b=2/a=1/x"], "has 'a', 'b' and .* has 'b', 'a'"),
        (["s3://b/a=1/a=2/x"], "has the partition key 'a' twice"),
        (["s3://b/plain/x=1.parquet"], "has none: correct the URL"),
        (["s3://b/a=%FF/x"], "no UTF-8"),
    ],
)
def test_folders_that_do_not_go_together_are_told(urls: list[str], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        find("hive", urls, None)


def test_an_unknown_key_is_told() -> None:
    with pytest.raises(FormatError, match=r"speaks of 'day', and the keys of .* are 'year'"):
        find({"day": int}, ["s3://b/year=2024/x"], None)


@pytest.mark.parametrize("option", ["spark", {"year": "int31"}, {"year": object}, {1: int}, ["year"], 7])
def test_an_option_that_cant_be_is_refused_at_once(option: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="partitions="):
        streamio.StreamingDataset("s3://nowhere/", partitions=option)


@given(st.lists(st.tuples(st.text("ab", min_size=1), st.text(min_size=1, max_size=5)), unique_by=lambda pair: pair[0]))
def test_what_hive_writes_is_read_back(pairs: list[tuple[str, str]]) -> None:
    folders = "/".join(f"{key}={quote(value, safe='')}" for key, value in pairs)
    assert told_by(f"s3://bucket/data/{folders}/part=0.parquet") == tuple(pairs)


@pytest.mark.parametrize(
    ("url", "pairs"),
    [
        ("memory://a=1/x", (("a", "1"),)),
        ("https://user:p=w@host/a=1/x?b=2/y", (("a", "1"),)),
        ("abfs://container@account=1/a=1/x", (("a", "1"),)),
        ("zip://b=2/x::s3://bucket/a=1/c=3.zip", (("a", "1"), ("b", "2"))),
        ("simplecache::s3://bucket/a=1/x", (("a", "1"),)),
        ("file:///data/a=1=2/=3/b=/x", (("a", "1=2"), ("b", ""))),
        (f"s3://bucket/a={NULL}/x", (("a", None),)),
    ],
)
def test_of_each_kind_of_url_only_folders_count(url: str, pairs: tuple[tuple[str, str | None], ...]) -> None:
    assert told_by(url) == pairs
