"""Reads through fsspec: chained and local stores, servers without ranges, and options that obstore can't be told."""

from __future__ import annotations

import functools
import logging
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import ReadError, ShardChangedError
from streamio.storage import engine as choice
from streamio.storage.guard import obstore_used
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.retry import Retry
from streamio.storage.shards import Shard

DATA = bytes(range(256)) * 1000
FAST = Retry(deadline=5, initial=0.01, maximum=0.05)


def read(url: str, version: str | None = None, size: int = len(DATA), **options: Any) -> bytes:
    with Reader(ReadSettings(options, retry=FAST, part_bytes=50_000)) as reader:
        source = reader.source(Shard(url, size, version))
        assert source.read(1000, 2000) == DATA[1000:2000]
        return b"".join(source.stream())


def test_an_option_that_obstore_can_not_be_told_is_honoured_through_s3fs_and_said_once(
    s3: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from aiobotocore.session import AioSession

    choice._told.clear()
    url, version = s3.put("data.bin", DATA), s3.etag("data.bin").strip('"')
    session = AioSession()
    session.set_credentials(s3.storage_options["key"], s3.storage_options["secret"])
    options = {name: value for name, value in s3.storage_options.items() if name not in ("key", "secret")}
    before = obstore_used()
    with caplog.at_level(logging.INFO, logger="streamio"):
        for _ in range(2):
            assert read(url, version, **options, session=session) == DATA
    assert obstore_used() is before
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert line == "s3:// is read through fsspec: obstore can't be told the option session"
    s3.put("data.bin", DATA[::-1])
    with pytest.raises(ShardChangedError, match="overwritten since it was listed"):
        read(url, version, **options, session=session)


def test_gs_is_read_through_gcsfs_for_the_listed_generation(gcs: Any) -> None:
    url, version = gcs.put("data.bin", DATA), gcs.etag("data.bin")
    assert read(url, version, **gcs.storage_options, requester_pays=True) == DATA
    gcs.put("data.bin", DATA[::-1])
    with pytest.raises(ShardChangedError, match="since it was listed"):
        read(url, version, **gcs.storage_options, requester_pays=True)


def test_chained_urls_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("data.bin", DATA)
    (tmp_path / "data.bin").write_bytes(DATA)
    assert read(f"zip://data.bin::file://{tmp_path}/a.zip") == DATA
    assert read(f"simplecache::file://{tmp_path}/data.bin") == DATA


def test_a_file_with_an_odd_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a b %20 ü#?.bin"
    path.write_bytes(DATA)
    assert read(f"file://{path}") == DATA


def test_a_server_that_ignores_ranges_is_told_with_the_remedy_and_read_by_it(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(DATA)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/data.bin"
        with pytest.raises(ReadError, match=r"does not answer range requests\. Put simplecache::"):
            read(url)
        assert read(f"simplecache::{url}") == DATA
        server.shutdown()


def test_a_blocked_file_system_ends_by_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec.implementations.memory

    released, calls = threading.Event(), []
    real = fsspec.implementations.memory.MemoryFileSystem.cat_file

    def cat_file(self: Any, path: str, **kwargs: Any) -> Any:
        calls.append(path)
        if len(calls) == 1:
            released.wait(20)
        return real(self, path, **kwargs)

    monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, "cat_file", cat_file)
    fsspec.filesystem("memory").pipe_file("/blocked/data.bin", DATA)
    settings = ReadSettings(retry=FAST, stall_timeout=0.3)
    with Reader(settings) as reader:
        assert reader.source(Shard("memory://blocked/data.bin", len(DATA))).read(0, 10) == DATA[:10]
        assert reader.counters.retries == 1
    released.set()
