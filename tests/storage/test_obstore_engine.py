"""What is asked of stores through obstore, and with which credentials."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from streamio.errors import AccessError, CredentialsError, ReadError, ShardChangedError
from streamio.storage import engine
from streamio.storage.engine import fits_obstore
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.retry import Retry
from streamio.storage.shards import Shard
from tests.servers.faults import Rule, status

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
            where = {"Content-Range": f"bytes {start}-{stop}/{len(DATA)}", "ETag": self.server.etag}
            self.answer(206, DATA[start : stop + 1], {**where, "x-goog-generation": self.server.generation})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        fields = {"Content-Length": str(len(body)), "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", **headers}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

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


@pytest.fixture
def shard(faulty: Any) -> Shard:
    return Shard(faulty.put("data.bin", DATA), len(DATA), faulty.etag("data.bin").strip('"'))


def s3(faulty: Any, shard: Shard, **options: Any) -> dict[str, str]:
    """Read from the server; the headers of the request."""
    with Reader(ReadSettings(options, retry=FAST)) as reader:
        assert reader.source(shard).read(0, 10) == DATA[:10]
    headers: dict[str, str] = faulty.proxy.requests[-1].headers
    assert headers["if-match"] == f'"{shard.version}"'
    return headers


def test_the_options_keys_are_used_and_never_mixed_with_the_environments(
    faulty: Any, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ENVSECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "ENVTOKEN")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    region = {"region_name": "eu-west-1"}
    headers = s3(faulty, shard, **{**faulty.storage_options, "client_kwargs": region})
    assert f"Credential={faulty.storage_options['key']}/" in headers["authorization"]
    assert "/eu-west-1/s3/" in headers["authorization"]
    assert "x-amz-security-token" not in headers


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_environment_gives_credentials_and_endpoint(
    faulty: Any, shard: Shard, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", faulty.storage_options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", faulty.storage_options["secret"])
    monkeypatch.setenv(name, faulty.proxy.endpoint)
    headers = s3(faulty, shard)
    assert f"Credential={faulty.storage_options['key']}/" in headers["authorization"]


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_profile_of_the_config_file_gives_credentials_region_and_endpoint(
    faulty: Any, shard: Shard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"[profile mine]\naws_access_key_id = {faulty.storage_options['key']}\n"
        f"aws_secret_access_key = {faulty.storage_options['secret']}\n"
        f"region = eu-west-2\nendpoint_url = {faulty.proxy.endpoint}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    if how == "environment":
        monkeypatch.setenv("AWS_PROFILE", "mine")
    headers = s3(faulty, shard, **({"profile": "mine"} if how == "option" else {}))
    assert "/eu-west-2/s3/" in headers["authorization"]


def credential_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Let botocore's config name a program for credentials; the file of its answer, and of its calls."""
    calls, answer, program, config = (tmp_path / name for name in ("calls", "answer", "program", "config"))
    program.write_text(f"#!/bin/sh\necho called >> {calls}\ncat {answer}\n")
    program.chmod(0o755)
    config.write_text(f"[default]\ncredential_process = {program}\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return answer, calls


def write_credentials(answer: Path, key: str, secret: str) -> None:
    fields = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret, "Expiration": "2999-01-01T00:00:00Z"}
    answer.write_text(json.dumps(fields))


def test_credentials_that_a_program_gives_are_cached(
    faulty: Any, shard: Shard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer, calls = credential_process(tmp_path, monkeypatch)
    write_credentials(answer, faulty.storage_options["key"], faulty.storage_options["secret"])
    with Reader(ReadSettings({"endpoint_url": faulty.proxy.endpoint}, retry=FAST)) as reader:
        source = reader.source(shard)
        for _ in range(20):
            source.read(0, 10)
    assert calls.read_text() == "called\n"


def test_credentials_that_have_run_out_are_looked_up_anew(
    faulty: Any, shard: Shard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer, calls = credential_process(tmp_path, monkeypatch)
    write_credentials(answer, faulty.storage_options["key"], faulty.storage_options["secret"])
    with Reader(ReadSettings({"endpoint_url": faulty.proxy.endpoint}, retry=FAST)) as reader:
        reader.source(shard).read(0, 10)
        faulty.proxy.add(Rule(status(400, "ExpiredToken")))
        assert reader.source(shard).read(10, 20) == DATA[10:20]
    assert calls.read_text() == "called\ncalled\n"


def test_anonymous_requests_are_not_signed(faulty: Any, shard: Shard) -> None:
    with pytest.raises(AccessError):  # the server knows nobody of that kind
        s3(faulty, shard, anon=True, endpoint_url=faulty.proxy.endpoint)
    assert "authorization" not in faulty.proxy.requests[-1].headers


def test_the_requester_pays_where_asked_for(faulty: Any, shard: Shard) -> None:
    headers = s3(faulty, shard, **faulty.storage_options, requester_pays=True)
    assert headers["x-amz-request-payer"] == "requester"


def test_no_credentials_at_all_are_told_with_the_url(faulty: Any, shard: Shard) -> None:
    with pytest.raises(CredentialsError, match=r"s3://.*/data\.bin: .*Check storage_options"):
        s3(faulty, shard, endpoint_url=faulty.proxy.endpoint)
    assert faulty.proxy.requests == []


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
