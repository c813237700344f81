from __future__ import annotations

import contextlib
import functools
import http.server
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import AccessError, CredentialsError, DataNotFoundError, EndpointError, SchemeError
from streamio.storage import place
from streamio.storage.discovery import discover
from streamio.storage.retry import Retry
from tests.servers.faults import Rule, status


@pytest.mark.parametrize("path", ["", "/", "/x.jsonl", "/folder/", "/*.jsonl", "/a/**/*.jsonl"])
def test_a_missing_bucket_is_told(localstack_s3: Any, gcs: Any, path: str) -> None:
    for bucket, scheme in ((localstack_s3, "s3"), (gcs, "gs")):
        with pytest.raises(DataNotFoundError, match="There is no bucket 'not-my-bucket'"):
            discover(f"{scheme}://not-my-bucket{path}", storage_options=bucket.storage_options)


@pytest.mark.parametrize("url", ["s3://", "gs://", "s3://*/x", "s3://a*b/x", "s3://A$b/x", "gs:///x"])
def test_a_bucket_name_that_can_not_be_is_told(url: str) -> None:
    with pytest.raises(ValueError, match="bucket"):
        discover(url)


@pytest.mark.parametrize("path", ["", "/x.jsonl", "/*.jsonl"])
def test_wrong_keys_are_told_without_the_secret(s3: Any, path: str) -> None:
    for wrong in ({"key": "AKIAWRONG"}, {"secret": "very-secret-indeed"}):
        with pytest.raises(CredentialsError, match="Check storage_options") as caught:
            discover(s3.url + path, storage_options={**s3.storage_options, **wrong})
        assert s3.url + path in str(caught.value)
        assert "very-secret-indeed" not in str(caught.value)


def test_no_permission_is_told(s3: Any) -> None:
    s3.put("x.jsonl", b"")
    endpoint = s3.storage_options["endpoint_url"]
    with pytest.raises(AccessError, match="access denied"):
        discover(s3.url, storage_options={"endpoint_url": endpoint, "anon": True})


def test_no_credentials_are_told(s3: Any) -> None:
    with pytest.raises(CredentialsError, match="Unable to locate credentials"):
        discover(s3.url, storage_options={"endpoint_url": s3.storage_options["endpoint_url"]})


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/x.jsonl", "/*.jsonl"])
def test_a_web_server_that_is_no_s3_is_told(s3: Any, tmp_path: Path, path: str) -> None:
    with web_server(tmp_path) as endpoint, pytest.raises(EndpointError, match="S3 server"):
        discover(f"s3://bucket{path}", storage_options={**s3.storage_options, "endpoint_url": endpoint})


def test_folders_of_a_web_server_are_listed_by_their_links(tmp_path: Path) -> None:
    (tmp_path / "d/in").mkdir(parents=True)
    for name in ("d/x.jsonl", "d/in/y.jsonl", "d/README.md"):
        (tmp_path / name).write_text("{}")
    with web_server(tmp_path) as base:
        every = discover(f"{base}/d/", accepts=lambda name: name.endswith(".jsonl"))
        assert [shard.url for shard in every] == [f"{base}/d/in/y.jsonl", f"{base}/d/x.jsonl"]
        assert set(every.sizes) == {2}
        assert [s.url for s in discover(f"{base}/d/*.jsonl")] == [f"{base}/d/x.jsonl"]
        signed = f"{base}/d/x.jsonl?token=abc"
        assert [s.url for s in discover(signed, accepts=lambda n: n.endswith(".jsonl"))] == [signed]
        with pytest.raises(DataNotFoundError, match="nothing is there"):
            discover(f"{base}/no.jsonl")


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
@pytest.mark.parametrize("path", ["bucket/x.jsonl", "bucket/*.jsonl", "bucket/"])
def test_an_endpoint_that_refuses_is_told_in_time(scheme: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_FIRST_ANSWER", 0.7)
    options: dict[str, Any] = {
        "s3": {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:1"},
        "gs": {"token": "anon", "endpoint_url": "http://127.0.0.1:1"},
        "http": {},
    }[scheme]
    url = f"http://127.0.0.1:1/{path}" if scheme == "http" else f"{scheme}://{path}"
    began = time.monotonic()
    with pytest.raises(EndpointError, match=r"(?s)Connect|refused.*Check the endpoint"):
        discover(url, storage_options=options)
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_endpoint_that_never_answers_is_told_in_time(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_FIRST_ANSWER", 0.7)
    began = time.monotonic()
    with silent_server() as endpoint, pytest.raises(EndpointError, match="in time"):
        discover(
            f"{scheme}://bucket/x/",
            storage_options={"endpoint_url": endpoint, "token": "anon"}
            if scheme == "gs"
            else {"endpoint_url": endpoint, "key": "k", "secret": "s"},
        )
    assert time.monotonic() - began < 8


def test_an_endpoint_of_an_unknown_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_FIRST_ANSWER", 0.7)
    options = {"key": "k", "secret": "s", "endpoint_url": "http://no-such-host.invalid"}
    with pytest.raises(EndpointError, match=r"no-such-host\.invalid"):
        discover("s3://bucket/x.jsonl", storage_options=options)


@pytest.mark.slow
def test_the_real_deadline_for_a_wrong_endpoint_is_some_20_s() -> None:
    began = time.monotonic()
    with silent_server() as endpoint, pytest.raises(EndpointError):
        discover("gs://bucket/x", storage_options={"endpoint_url": endpoint, "token": "anon"})
    assert 10 < time.monotonic() - began < 22


def test_unknown_schemes_and_options_are_told(s3: Any) -> None:
    with pytest.raises(SchemeError, match="no scheme 's4'"):
        discover("s4://bucket/x")
    with pytest.raises(TypeError, match="'endpoint_ulr'"):
        discover(s3.url, storage_options={**s3.storage_options, "endpoint_ulr": "x"})


def test_an_archive_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"nope\.zip"):
        discover(f"zip://*::{tmp_path}/nope.zip")


def test_a_local_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, whom no mode bit stops.
    def refuse(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(AccessError, match="Permission denied"):
        discover(tmp_path)


def test_retry_reaches_the_listing(faulty: Any) -> None:
    faulty.put("d/a.jsonl", b"{}\n")
    faulty.proxy.add(Rule(status(503), path="list-type=2&prefix=d%2F&enc", times=None))
    began = time.monotonic()
    with pytest.raises(EndpointError, match="listing: given up"):
        discover(
            f"{faulty.url}/d",
            storage_options=faulty.storage_options,
            retry=Retry(deadline=0.5, initial=0.01, maximum=0.05),
        )
    assert time.monotonic() - began < 5


def test_credentials_that_are_set_after_a_first_failure_are_seen(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("d/a.jsonl", b"{}\n")
    options = {"endpoint_url": s3.storage_options["endpoint_url"]}
    with pytest.raises(CredentialsError):
        discover(f"{s3.url}/d", storage_options=options)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.storage_options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrongwrongwrong")
    with pytest.raises(CredentialsError):
        discover(f"{s3.url}/d", storage_options=options)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.storage_options["secret"])
    assert len(discover(f"{s3.url}/d", storage_options=options)) == 1


@pytest.mark.parametrize("scheme", ["s3", "gs", "https"])
def test_https_asked_of_a_plain_http_server_is_told_with_the_remedy(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_FIRST_ANSWER", 0.7)
    with web_server(tmp_path) as plain:
        endpoint = plain.replace("http://", "https://")
        options = {"s3": {"key": "k", "secret": "s"}, "gs": {"token": "anon"}, "https": {}}[scheme]
        url = f"{endpoint}/x.jsonl" if scheme == "https" else f"{scheme}://bucket/x.jsonl"
        with pytest.raises(EndpointError, match="does not speak TLS: write http:// in endpoint_url"):
            discover(url, storage_options=options if scheme == "https" else {**options, "endpoint_url": endpoint})


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("given", [{"endpoint_url": 5}, {"client_kwargs": {"endpoint_url": ["http://h"]}}])
def test_an_endpoint_url_that_is_no_string_is_told_by_name(scheme: str, given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{scheme}://bucket/d: storage_options: endpoint_url must be a string"):
        discover(f"{scheme}://bucket/d", storage_options=given)


def test_an_option_that_gcsfs_does_not_know_is_told_by_name(gcs: Any) -> None:
    gcs.put("d/a.jsonl", b"{}\n")
    known = {"timeout": 5, "requester_pays": False, "batch_size": 8, "retry_timeout": 9.0, "listings_expiry_time": 1}
    assert len(discover(f"{gcs.url}/d", storage_options={**gcs.storage_options, **known})) == 1
    with pytest.raises(TypeError, match="gs:// does not know the option 'bogus'"):
        discover(f"{gcs.url}/d", storage_options={**gcs.storage_options, "bogus": 1})
