from __future__ import annotations

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from benchmarks import data
from benchmarks.place import Place
from tests.benchmarks.conftest import FORMATS, SCALE


@pytest.mark.parametrize("kind", ["images", "text"])
def test_a_part_is_the_same_at_every_call_and_unlike_its_neighbour(kind: str) -> None:
    first, again, other = data.part(kind, SCALE, 3), data.part(kind, SCALE, 3), data.part(kind, SCALE, 4)
    assert first == again
    assert first.columns.keys() == other.columns.keys()
    assert not set(first.columns["id"]) & set(other.columns["id"])
    large = "image" if kind == "images" else "text"
    assert first.columns[large][0] != other.columns[large][0]


def test_all_formats_of_a_text_shard_hold_the_same_records() -> None:
    content = data.part("text", SCALE, 0)
    rows = list(content.rows())
    assert pq.read_table(pa.BufferReader(data.parquet(content))).to_pylist() == rows
    assert [json.loads(line) for line in data.jsonl(content).splitlines()] == rows
    lines = zstandard.ZstdDecompressor().decompressobj().decompress(data.jsonl_zst(content))
    assert [json.loads(line) for line in lines.splitlines()] == rows
    with tarfile.open(fileobj=io.BytesIO(data.tar(content))) as archive:
        assert [json.load(archive.extractfile(member)) for member in archive] == rows  # type: ignore[arg-type]


def test_the_bucket_holds_what_was_noted(place: Place) -> None:
    found = data.dataset(place, "text", "parquet")
    stored = place.files().find(place.url(found.prefix), detail=True).values()
    assert dict(found.keys) == {info["name"].partition("/")[2]: info["size"] for info in stored}
    rows = [row for number in range(data.SHARDS) for row in data.part("text", SCALE, number).rows()]
    assert (found.records, found.id_sum) == (len(rows), sum(row["id"] for row in rows))
    assert found.payload_bytes == sum(len(row["text"]) + len(row["lang"]) + 16 for row in rows)


def test_what_is_there_is_not_made_again(place: Place) -> None:
    said: list[str] = []
    data.make(place, SCALE, FORMATS, say=said.append)
    assert said == []


def test_missing_data_are_told_with_the_remedy(place: Place) -> None:
    with pytest.raises(FileNotFoundError, match=r"python -m benchmarks data"):
        data.dataset(place, "text", "csv")
