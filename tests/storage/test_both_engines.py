"""What options, environment and config files say means the same through obstore and through fsspec."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import AccessError, CredentialsError, ReadError, ShardChangedError
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.retry import Retry
from streamio.storage.shards import Shard
from tests.servers.faults import FaultProxy, Rule, cut_after, reset_after, status
from tests.storage.tls import make_certificates, tls_before

DATA = bytes(range(256)) * 1000
FAST = Retry(deadline=5, initial=0.01, maximum=0.05)


@pytest.fixture(params=["obstore", "fsspec"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shard(faulty: Any) -> Shard:
    return Shard(faulty.put("data.bin", DATA), len(DATA), faulty.etag("data.bin").strip('"'))


def reader(engine: str, options: dict[str, Any]) -> Reader:
    return Reader(ReadSettings(options, retry=FAST, engine=engine))  # type: ignore[arg-type]


def ask(faulty: Any, shard: Shard, engine: str, **options: Any) -> dict[str, str]:
    """Read from the server; the headers of the request."""
    with reader(engine, options) as made:
        assert made.source(shard).read(0, 10) == DATA[:10]
    headers: dict[str, str] = faulty.proxy.requests[-1].headers
    assert headers["if-match"] == f'"{shard.version}"'
    return headers


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_parts_are_read_side_by_side(request: pytest.FixtureRequest, engine: str, kind: str) -> None:
    bucket = request.getfixturevalue(kind)
    shard = Shard(bucket.put("data.bin", DATA), len(DATA), bucket.etag("data.bin").strip('"'))
    with FaultProxy(bucket.server.endpoint) as proxy:
        options = {**bucket.storage_options, "endpoint_url": proxy.endpoint}
        settings = ReadSettings(options, retry=FAST, part_bytes=len(DATA) // 20, engine=engine)  # type: ignore[arg-type]
        with Reader(settings) as made:
            made.source(shard).read(0, 10)
            proxy.delay(0.3)
            began = time.monotonic()
            assert b"".join(made.source(shard).stream()) == DATA
            assert time.monotonic() - began < 3  # one after the other they take six
            assert made.counters.requests == 21


# Who asks


def test_the_options_keys_are_used_and_never_mixed_with_the_environments(
    faulty: Any, shard: Shard, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ENVSECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "ENVTOKEN")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    options = {**faulty.storage_options, "client_kwargs": {"region_name": "eu-west-1"}}
    headers = ask(faulty, shard, engine, **options)
    assert f"Credential={faulty.storage_options['key']}/" in headers["authorization"]
    assert "/eu-west-1/s3/" in headers["authorization"]
    assert "x-amz-security-token" not in headers


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_environment_gives_credentials_and_endpoint(
    faulty: Any, shard: Shard, engine: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", faulty.storage_options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", faulty.storage_options["secret"])
    monkeypatch.setenv(name, faulty.proxy.endpoint)
    headers = ask(faulty, shard, engine)
    assert f"Credential={faulty.storage_options['key']}/" in headers["authorization"]


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_the_environment_gives_the_region(
    faulty: Any, shard: Shard, engine: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "ap-south-1")
    assert "/ap-south-1/s3/" in ask(faulty, shard, engine, **faulty.storage_options)["authorization"]


@pytest.mark.parametrize("how", ["option", "environment"])
@pytest.mark.parametrize("file", ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"])
def test_a_profile_gives_credentials_region_and_endpoint(
    faulty: Any, shard: Shard, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str, file: str
) -> None:
    path = tmp_path / "file"
    path.write_text(
        f"[{'profile ' if file == 'AWS_CONFIG_FILE' else ''}mine]\n"
        f"aws_access_key_id = {faulty.storage_options['key']}\n"
        f"aws_secret_access_key = {faulty.storage_options['secret']}\n"
        f"region = eu-west-2\nendpoint_url = {faulty.proxy.endpoint}\n"
    )
    monkeypatch.setenv(file, str(path))
    if how == "environment":
        monkeypatch.setenv("AWS_PROFILE", "mine")
    headers = ask(faulty, shard, engine, **({"profile": "mine"} if how == "option" else {}))
    assert "/eu-west-2/s3/" in headers["authorization"]


def test_the_config_file_gives_a_region_to_keys_and_endpoint_of_the_options(
    faulty: Any, shard: Shard, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\nregion = sa-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert "/sa-east-1/s3/" in ask(faulty, shard, engine, **faulty.storage_options)["authorization"]


def credential_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Any) -> Path:
    """Let the config file name a program for credentials; the file of its calls."""
    calls, answer, program, config = (tmp_path / name for name in ("calls", "answer", "program", "config"))
    program.write_text(f"#!/bin/sh\necho called >> {calls}\ncat {answer}\n")
    program.chmod(0o755)
    config.write_text(f"[default]\ncredential_process = {program}\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    key, secret = bucket.storage_options["key"], bucket.storage_options["secret"]
    fields = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret, "Expiration": "2999-01-01T00:00:00Z"}
    answer.write_text(json.dumps(fields))
    return calls


def test_credentials_that_a_program_gives_are_cached(
    faulty: Any, shard: Shard, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = credential_process(tmp_path, monkeypatch, faulty)
    with reader(engine, {"endpoint_url": faulty.proxy.endpoint}) as made:
        for _ in range(20):
            made.source(shard).read(0, 10)
    assert calls.read_text() == "called\n"


def test_credentials_that_have_run_out_are_looked_up_anew(
    faulty: Any, shard: Shard, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = credential_process(tmp_path, monkeypatch, faulty)
    with reader(engine, {"endpoint_url": faulty.proxy.endpoint}) as made:
        made.source(shard).read(0, 10)
        faulty.proxy.add(Rule(status(400, "ExpiredToken")))
        assert made.source(shard).read(10, 20) == DATA[10:20]
    assert calls.read_text() == "called\ncalled\n"


def test_anonymous_requests_are_not_signed(faulty: Any, shard: Shard, engine: str) -> None:
    with pytest.raises(AccessError):  # the server knows nobody of that kind
        ask(faulty, shard, engine, anon=True, endpoint_url=faulty.proxy.endpoint)
    assert "authorization" not in faulty.proxy.requests[-1].headers


@pytest.mark.parametrize("change", ["key", "secret"])
def test_wrong_credentials_are_told_at_once_and_never_shown(
    faulty: Any, shard: Shard, engine: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((AccessError, CredentialsError), match=r"data\.bin: bytes 0-9: ") as caught:
        ask(faulty, shard, engine, **{**faulty.storage_options, change: "hushhush"})
    assert len(faulty.proxy.requests) == 1
    assert "hushhush" not in str(caught.value) + caplog.text


def test_no_credentials_at_all_are_told_with_the_url(faulty: Any, shard: Shard, engine: str) -> None:
    with pytest.raises(CredentialsError, match=r"s3://.*/data\.bin: .*Check storage_options"):
        ask(faulty, shard, engine, endpoint_url=faulty.proxy.endpoint)
    assert faulty.proxy.requests == []


def test_the_requester_pays_where_asked_for(faulty: Any, shard: Shard, engine: str) -> None:
    headers = ask(faulty, shard, engine, **faulty.storage_options, requester_pays=True)
    assert headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" not in ask(faulty, shard, engine, **faulty.storage_options)


# Whom to trust


@pytest.mark.parametrize("how", ["option", "environment", "unchecked"])
def test_an_endpoint_with_a_certificate_of_ones_own_authority_is_read(
    faulty: Any, shard: Shard, engine: str, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ca, own = make_certificates(tmp_path)
    if how == "environment":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(ca))
    client = {"option": {"verify": str(ca)}, "environment": {}, "unchecked": {"verify": False}}[how]
    with tls_before(faulty.proxy.endpoint, own) as endpoint:
        ask(faulty, shard, engine, **{**faulty.storage_options, "endpoint_url": endpoint, "client_kwargs": client})


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(
    faulty: Any, shard: Shard, engine: str, tmp_path: Path
) -> None:
    _, own = make_certificates(tmp_path)
    with tls_before(faulty.proxy.endpoint, own) as endpoint, pytest.raises(ReadError, match=r"(?i)certificate"):
        ask(faulty, shard, engine, **{**faulty.storage_options, "endpoint_url": endpoint})
    assert faulty.proxy.requests == []


# What fails


@pytest.mark.parametrize("number", [404, 412, 416])
def test_an_object_that_is_gone_or_another_one_is_told_at_once(
    faulty: Any, shard: Shard, engine: str, number: int
) -> None:
    faulty.proxy.add(Rule(status(number), times=None))
    with pytest.raises(ShardChangedError, match=r"data\.bin: bytes 0-9: .* since it was listed"):
        ask(faulty, shard, engine, **faulty.storage_options)
    assert len(faulty.proxy.requests) == 1


def test_gs_means_the_same_through_both(gcs: Any, engine: str) -> None:
    shard = Shard(gcs.put("data.bin", DATA), len(DATA), gcs.etag("data.bin"))
    with FaultProxy(gcs.server.endpoint) as proxy:
        options = {**gcs.storage_options, "endpoint_url": proxy.endpoint}
        proxy.add(Rule(status(503), times=2), Rule(reset_after(100_000)), Rule(cut_after(90_000)))
        with reader(engine, options) as made:
            assert made.source(shard).read(10, 200_000) == DATA[10:200_000]
            assert b"".join(made.source(shard).stream()) == DATA
            assert made.counters.retries == 4
            proxy.add(Rule(status(403)))
            with pytest.raises(AccessError, match=r"data\.bin: bytes 0-9: access denied"):
                made.source(shard).read(0, 10)
            gcs.put("data.bin", DATA[::-1])
            with pytest.raises(ShardChangedError, match="since it was listed"):
                made.source(shard).read(0, 10)
            gcs.delete("data.bin")
            with pytest.raises(ShardChangedError, match="since it was listed"):
                made.source(shard).read(0, 10)


def test_gs_finds_the_emulator_in_the_environment(gcs: Any, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard(gcs.put("data.bin", DATA), len(DATA), gcs.etag("data.bin"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.server.endpoint)
    with reader(engine, {"token": "anon"}) as made:
        assert made.source(shard).read(0, 10) == DATA[:10]
