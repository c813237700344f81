"""Whole files: any name, the bytes as they are, one record each."""

from __future__ import annotations

import gzip
import pickle

import pytest

import streamio
from streamio.formats import registry
from streamio.formats.base import StreamedFormat
from streamio.formats.files import Files
from tests.formats.blocks import rows_of
from tests.formats.memory_source import MemorySource


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
@pytest.mark.parametrize("views", [True, False])
def test_a_file_is_one_record_of_its_bytes(chunk, views):
    data = gzip.compress(bytes(range(256)) * 9)
    source = MemorySource(data, "s3://bucket/images/a.gz", chunk, views=views)
    (row,) = rows_of(Files().blocks(source, 0, source.size))
    assert row.value == {"path": "images/a.gz", "bytes": data}
    assert type(row.value["bytes"]) is bytes
    assert (row.index, row.nbytes) == (0, len(data) + 256)
    assert source.open_streams == 0


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("s3://bucket/a/b.jpg", "a/b.jpg"),
        ("gs://bucket/ä b#c?d", "ä b#c?d"),
        ("az://container/a.png", "a.png"),
        ("https://host:8080/a/b.jpg?X-Amz-Signature=hidden#part", "a/b.jpg"),
        ("file:///data/a.jpg", "/data/a.jpg"),
        ("memory://a/b.jpg", "a/b.jpg"),
        ("zip://inner/a.jpg::s3://bucket/outer.zip", "inner/a.jpg"),
        ("simplecache::s3://bucket/a/b.jpg", "a/b.jpg"),
        ("/data/a.jpg", "/data/a.jpg"),
    ],
)
def test_the_path_is_that_within_the_bucket_or_host(url, path):
    (row,) = rows_of(Files().blocks(MemorySource(b"1", url), 0, 1))
    assert row.value["path"] == path


def test_the_format_is_chosen_by_name_only():
    assert isinstance(registry.for_url("s3://bucket/a.parquet", format="files"), Files)
    assert isinstance(registry.for_url("s3://bucket/README", format="files"), Files)
    assert Files.suffixes == ()


def test_the_format_is_a_picklable_value_that_is_not_cut():
    assert isinstance(Files(), StreamedFormat)
    assert pickle.loads(pickle.dumps(Files())) == Files()
    assert not Files().cuttable("s3://bucket/a")


def test_a_folder_of_any_files_is_read_and_empty_ones_have_no_record(s3):
    wanted = {"a.jpg": b"\xff\xd8", "b/c.parquet": b"no parquet", "README": b"text", "d.json.gz": gzip.compress(b"{")}
    for name, data in {**wanted, "empty.bin": b""}.items():
        s3.put(f"files/{name}", data)
    dataset = streamio.StreamingDataset(
        f"{s3.url}/files/", format="files", storage_options=s3.storage_options, engine="fsspec"
    )
    records = [record for batch in streamio.DataLoader(dataset, batch_size=3) for record in batch]
    assert len(records) == len(wanted)
    assert {record["path"]: record["bytes"] for record in records} == {
        f"files/{name}": data for name, data in wanted.items()
    }
