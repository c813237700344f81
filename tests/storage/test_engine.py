"""Which engine reads what, and what is said where the one asked for can't."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import SchemeError
from streamio.storage import engine as module
from streamio.storage.engine import check_engine
from streamio.storage.guard import obstore_used
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.shards import Shard


def test_an_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine must be .*, not 'boto'"):
        ReadSettings(engine="boto")  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["/data/*.jsonl", "https://h/x.jsonl", "memory://x", "simplecache::s3://b/x.jsonl"])
def test_obstore_is_refused_for_schemes_that_it_does_not_read(url: str) -> None:
    with pytest.raises(SchemeError, match=r'engine="obstore": obstore reads s3:// and gs:// .*engine="auto"'):
        check_engine(ReadSettings(engine="obstore"), ["s3://bucket/x.jsonl", url])


@pytest.mark.parametrize(
    ("url", "options", "name"),
    [
        ("s3://b/*.jsonl", {"session": "hush"}, "session"),
        ("s3a://b/", {"config_kwargs": {"proxies": {"http": "hush"}}}, r"config_kwargs\.proxies"),
        ("gs://b/x.jsonl", {"requester_pays": "hush"}, "requester_pays"),
    ],
)
def test_obstore_is_refused_with_options_that_it_can_not_be_told(url: str, options: dict[str, Any], name: str) -> None:
    with pytest.raises(SchemeError, match=f"can't be told the option {name}") as caught:
        check_engine(ReadSettings(options, engine="obstore"), [url])
    assert "hush" not in str(caught.value)
    for engine in ("auto", "fsspec"):
        check_engine(ReadSettings(options, engine=engine), [url])  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["s3://b", "s3://b/a/", "S3A://b/**/*.parquet", "gs://b/x[0-9].jsonl"])
def test_obstore_is_accepted_for_urls_globs_and_folders_of_its_schemes(url: str) -> None:
    check_engine(ReadSettings({"s3": {"key": "k", "secret": "s"}, "gs": {"token": "anon"}}, engine="obstore"), [url])


@pytest.mark.parametrize("url", ["s3://b/a//x", "file:///x", "zip://x::s3://b/x.zip"])
def test_a_shard_that_obstore_can_not_read_is_an_error_where_it_was_asked_for(url: str) -> None:
    with (
        Reader(ReadSettings({"key": "k", "secret": "s"}, engine="obstore")) as reader,
        pytest.raises(SchemeError, match=r'engine="obstore": obstore .*engine="auto"'),
    ):
        reader.source(Shard(url, 10)).read(0, 10)
    assert reader.counters.requests == 0


def test_what_obstore_does_not_read_anyway_is_not_talked_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_told", set())
    (tmp_path / "data.bin").write_bytes(b"0123456789")
    before = obstore_used()
    with caplog.at_level(logging.INFO, logger="streamio"), Reader(ReadSettings()) as reader:
        assert reader.source(Shard((tmp_path / "data.bin").as_uri(), 10)).read(0, 10) == b"0123456789"
    assert caplog.text == ""
    assert obstore_used() is before
