"""What is asked of stores through obstore, and with which credentials."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

from streamio.errors import ReadError, ShardChangedError
from streamio.storage import engine
from streamio.storage.engine import fits_obstore
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.retry import Retry
from streamio.storage.shards import Shard

DATA = bytes(range(256)) * 100
FAST = Retry(deadline=5, initial=0.01, maximum=0.05)


class Stub(ThreadingHTTPServer):
    """A store with one object that heeds preconditions, and remembers what it was asked.

    It stands in for GCS alone, whose emulator ignores preconditions on GET.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.etag = '"tag"'
        self.generation = "42"
        self.data = DATA
        self.pause = 0.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.path, headers))
        wanted = self.path.partition("generation=")[2]
        if wanted and wanted != self.server.generation:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
        elif headers.get("if-match", self.server.etag) != self.server.etag:
            self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", {})
        else:
            start, stop = (int(text) for text in headers["range"].removeprefix("bytes=").split("-"))
            data = self.server.data
            where = {"Content-Range": f"bytes {start}-{stop}/{len(data)}", "ETag": self.server.etag}
            self.answer(206, data[start : stop + 1], {**where, "x-goog-generation": self.server.generation})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        fields = {"Content-Length": str(len(body)), "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", **headers}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        for start in range(0, len(body), 100_000):
            if start:
                time.sleep(self.server.pause)
            try:
                self.wfile.write(body[start : start + 100_000])
            except OSError:
                self.close_connection = True  # whoever asked has left
                return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def gs(stub: Stub, version: str | None, **options: Any) -> bytes:
    settings = ReadSettings({"endpoint_url": stub.endpoint, **options}, retry=FAST)
    with Reader(settings) as reader:
        return reader.source(Shard("gs://bucket/data.bin", len(DATA), version)).read(100, 200)


def test_a_gs_object_is_asked_for_by_its_listed_generation(stub: Stub) -> None:
    assert gs(stub, "42") == DATA[100:200]
    ((path, headers),) = stub.asked
    assert unquote(path) == "/bucket/data.bin?generation=42"
    assert headers["range"] == "bytes=100-199"
    assert "authorization" not in headers
    stub.generation = "43"
    with pytest.raises(ShardChangedError, match="since it was listed"):
        gs(stub, "42")


def test_a_gs_object_known_by_its_etag_is_asked_for_by_it(stub: Stub) -> None:
    assert gs(stub, "tag") == DATA[100:200]
    assert stub.asked[0][1]["if-match"] == '"tag"'
    stub.etag = '"other"'
    with pytest.raises(ShardChangedError, match="overwritten since it was listed"):
        gs(stub, "tag")


def test_a_bearer_token_of_gcsfs_is_sent(stub: Stub) -> None:
    assert gs(stub, None, token="ya29.mine") == DATA[100:200]
    assert stub.asked[0][1]["authorization"] == "Bearer ya29.mine"


def drip(stub: Stub, deadline: float) -> tuple[Reader, Shard]:
    """A body of a million bytes, of which a tenth comes every 0.2 seconds; silence is allowed for 0.4."""
    stub.data, stub.pause = random.Random(3).randbytes(1_000_000), 0.2
    retry = Retry(deadline=deadline, initial=0.01, maximum=0.02)
    settings = ReadSettings({"endpoint_url": stub.endpoint}, retry=retry, stall_timeout=0.4, engine="obstore")
    return Reader(settings), Shard("gs://bucket/data.bin", 1_000_000, "42")


def test_a_body_that_comes_slowly_but_comes_is_not_cut_off(stub: Stub) -> None:
    reader, shard = drip(stub, deadline=10)
    with reader:
        began = time.monotonic()
        assert reader.source(shard).read(0, shard.size) == stub.data
        assert time.monotonic() - began > 1.5
        assert (reader.counters.requests, reader.counters.bytes_read) == (1, shard.size)


def test_a_body_that_takes_longer_than_the_deadline_is_read_on_as_long_as_it_comes(stub: Stub) -> None:
    reader, shard = drip(stub, deadline=1.2)  # which is the longest that one request may take
    with reader:
        began = time.monotonic()
        assert reader.source(shard).read(0, shard.size) == stub.data
        assert time.monotonic() - began > 2.4
        assert [headers["range"] for _, headers in stub.asked[:2]] == ["bytes=0-999999"] * 2
        assert len(stub.asked) >= 3
        assert reader.counters.bytes_read == shard.size


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("s3://b/k", True),
        ("s3://b/a b/ü~%20+&=#.bin", True),
        ("s3://b/a//b", False),
        ("s3://b//a", False),
        ("s3://b/a/", False),
        ("s3://b/a/../b", False),
        ("s3://b/./b", False),
        ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/a/k", False),
        ("s3://name--use1-az4--x-s3/k", False),
    ],
)
def test_keys_that_obstore_would_refuse_or_change_are_not_given_to_it(url: str, fits: bool) -> None:
    assert fits_obstore(url) is fits


def test_keys_with_control_characters_are_read_through_fsspec(s3: Any) -> None:
    for name in ("nl\nx.jsonl", "tab\t.jsonl", "del\x7f.jsonl"):
        assert not fits_obstore(f"s3://bucket/{name}")
        s3.put(name, b"12345")
        with Reader(ReadSettings(s3.storage_options, retry=FAST)) as reader:
            assert reader.source(Shard(f"{s3.url}/{name}", 5, None)).read(0, 5) == b"12345"


def test_a_key_that_obstore_refuses_is_an_error_with_the_url(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "fits_obstore", lambda url: True)
    with (
        Reader(ReadSettings(s3.storage_options, retry=FAST)) as reader,
        pytest.raises(ReadError, match=f"{s3.url}/a//x.jsonl: obstore can't read it"),
    ):
        reader.source(Shard(f"{s3.url}/a//x.jsonl", 5, None)).read(0, 5)


def test_a_process_that_ends_right_after_its_last_read_ends_in_order(s3: Any) -> None:
    url = s3.put("data.bin", bytes(300_000))
    program = f"""
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.shards import Shard
with Reader(ReadSettings(storage_options={s3.storage_options!r})) as reader:
    assert len(b"".join(reader.source(Shard({url!r}, 300_000)).stream())) == 300_000
"""
    for _ in range(5):  # four at once, as a loaded machine shows it best
        started = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(4)]
        for process in started:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
