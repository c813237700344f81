from __future__ import annotations

import pytest

from streamio.index.place import check_out, data_folder, default_url, folder_of


@pytest.mark.parametrize(
    ("urls", "shards", "folder"),
    [
        ("s3://b/train", ["s3://b/train/x.jsonl"], "s3://b/train"),
        ("s3a://b/train/", ["s3://b/train/2024/x.jsonl"], "s3://b/train"),
        ("s3://b/train/**/*.jsonl", ["s3://b/train/2024/x.jsonl"], "s3://b/train"),
        ("s3://b/tr*n/x.jsonl", ["s3://b/train/x.jsonl"], "s3://b"),
        ("s3://b", ["s3://b/x.jsonl"], "s3://b"),
        ("s3://b/train/x.jsonl", ["s3://b/train/x.jsonl"], "s3://b/train"),
        (["s3://b/train/en", "s3://b/train/enough/*.txt"], [], "s3://b/train"),
        (["s3://b/en", "gs://b/en"], [], None),
        (["s3://b/en", "s3://c/en"], [], None),
        (["/data/en", "/other"], [], "file://"),
        ("zip://*.jsonl::s3://b/c.zip", ["zip://x.jsonl::s3://b/c.zip"], None),
        ("https://h/x.jsonl?sig=1", ["https://h/x.jsonl?sig=1"], None),
        ("https://h/d/x.jsonl", ["https://h/d/x.jsonl"], "https://h/d"),
    ],
)
def test_the_index_lies_in_the_common_folder_of_the_urls(urls: str | list[str], shards: list[str], folder: str) -> None:
    assert data_folder(urls, shards) == folder
    if folder is not None:
        assert folder_of(default_url(folder)) == folder


@pytest.mark.parametrize("out", ["s3://b/train/index.parquet", "s3://b/train/en/index.parquet"])
def test_an_index_among_the_data_is_refused(out: str) -> None:
    with pytest.raises(ValueError, match=r"lies among the data.*s3://b/train/_streamio/index.parquet"):
        check_out(out, "s3://b/train")


@pytest.mark.parametrize(
    "out", ["s3://b/train/_x/index.parquet", "s3://b/train/.index.parquet", "s3://b/trains/index.parquet", "s3://c/i"]
)
def test_an_index_elsewhere_or_hidden_is_fine(out: str) -> None:
    check_out(out, "s3://b/train")
    check_out(out, None)
