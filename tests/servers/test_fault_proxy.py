"""tests/servers/faults.py: what the proxy promises to break is broken so, and all else passes untouched."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.buckets import Bucket, serve
from tests.servers.faults import (
    FaultProxy,
    Rule,
    close,
    cut_after,
    ignore_range,
    passed,
    replace_once,
    reset_after,
    short,
    stall,
    status,
)

DATA = os.urandom(300_000)


@pytest.fixture
def key(faulty: Any) -> str:
    faulty.put("folder/object", DATA)
    return f"/{faulty.name}/folder/object"


@pytest.fixture
def client(faulty: Any) -> Iterator[http.client.HTTPConnection]:
    host = urllib.parse.urlsplit(faulty.proxy.endpoint).netloc
    connection = http.client.HTTPConnection(host, timeout=10)
    yield connection
    connection.close()


def _get(
    client: http.client.HTTPConnection, path: str, span: str | None = None, method: str = "GET"
) -> tuple[int, bytes]:
    headers = serve.sign(method, f"{client.host}:{client.port}", path, "", b"")
    client.request(method, path, headers=headers | ({"Range": f"bytes={span}"} if span else {}))
    answer = client.getresponse()
    return answer.status, answer.read()


def test_without_rules_signed_requests_pass_and_are_recorded(faulty: Any, key: str, client: Any) -> None:
    assert _get(client, key) == (200, DATA)
    first = client.sock
    assert _get(client, key, "100-199") == (206, DATA[100:200])
    assert _get(client, key, method="HEAD") == (200, b"")
    assert _get(client, "/no-such-bucket/x")[0] == 404
    assert client.sock is first  # kept alive
    seen = [(request.method, request.range, request.status, request.sent) for request in faulty.proxy.requests]
    assert seen[:3] == [
        ("GET", None, 200, 300_000),
        ("GET", "bytes=100-199", 206, 100),
        ("HEAD", None, 200, 0),
    ]
    assert faulty.proxy.requests[0].path == key
    assert not any(request.faulted for request in faulty.proxy.requests)


def test_a_status_is_answered_as_often_as_told(faulty: Any, key: str, client: Any) -> None:
    faulty.proxy.add(Rule(status(503), times=2), Rule(status(403, code="Nope"), method="HEAD"))
    number, document = _get(client, key)
    assert number == 503
    assert b"<Code>SlowDown</Code>" in document
    assert [_get(client, key)[0] for _ in range(2)] == [503, 200]
    assert _get(client, key, method="HEAD") == (403, b"")
    assert [request.status for request in faulty.proxy.requests] == [503, 503, 200, 403]


def test_a_rule_takes_what_it_matches_alone(faulty: Any, key: str, client: Any) -> None:
    faulty.put("other", b"x")
    faulty.proxy.add(Rule(passed()), Rule(status(500), path="object$", range="=0-", times=None))
    assert [_get(client, key, "0-9")[0] for _ in range(3)] == [206, 500, 500]
    assert _get(client, key, "10-19")[0] == 206
    assert _get(client, key)[0] == 200
    assert _get(client, f"/{faulty.name}/other", "0-0")[0] == 206
    faulty.proxy.clear()
    assert _get(client, key, "0-9")[0] == 206
    assert len(faulty.proxy.requests) == 1


def test_close_gives_no_answer(faulty: Any, key: str, client: Any) -> None:
    faulty.proxy.add(Rule(close()))
    with pytest.raises(http.client.RemoteDisconnected):
        _get(client, key)
    assert faulty.proxy.requests[0].status is None


@pytest.mark.parametrize("size", [0, 1, 70_000, 299_999])
def test_a_cut_ends_in_order_after_so_many_bytes(faulty: Any, key: str, client: Any, size: int) -> None:
    faulty.proxy.add(Rule(cut_after(size)))
    with pytest.raises(http.client.IncompleteRead) as caught:
        _get(client, key)
    assert caught.value.partial == DATA[:size]
    assert faulty.proxy.requests[0].sent == size


@pytest.mark.parametrize("size", [0, 70_000])
def test_a_reset_is_seen_as_one_after_so_many_bytes(faulty: Any, key: str, client: Any, size: int) -> None:
    faulty.proxy.add(Rule(reset_after(size)))
    client.request("GET", key, headers=serve.sign("GET", f"{client.host}:{client.port}", key, "", b""))
    answer = client.getresponse()
    assert answer.read(size) == DATA[:size]
    with pytest.raises(ConnectionResetError):
        answer.read()


@pytest.mark.parametrize("fault", [reset_after(70_000), cut_after(70_000), close()])
def test_a_process_forked_meanwhile_does_not_hold_a_broken_connection_open(
    faulty: Any, key: str, client: Any, fault: Any
) -> None:
    leave = multiprocessing.get_context("fork").Event()
    faulty.proxy.add(Rule(passed()), Rule(fault))
    _get(client, key)  # its connection is open in the proxy when the fork comes
    child = multiprocessing.get_context("fork").Process(target=leave.wait, args=(60,))
    child.start()
    try:
        begun = time.monotonic()
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            _get(client, key)
        assert time.monotonic() - begun < 5
    finally:
        leave.set()
        child.join()


@pytest.mark.parametrize(("honest", "claimed"), [(False, "100-199"), (True, "100-149")])
def test_a_short_answer_is_whole_in_itself(faulty: Any, key: str, client: Any, honest: bool, claimed: str) -> None:
    faulty.proxy.add(Rule(short(50, honest=honest)))
    headers = serve.sign("GET", f"{client.host}:{client.port}", key, "", b"")
    client.request("GET", key, headers=headers | {"Range": "bytes=100-199"})
    answer = client.getresponse()
    assert (answer.status, answer.read()) == (206, DATA[100:150])
    assert answer.getheader("Content-Length") == "50"
    assert answer.getheader("Content-Range") == f"bytes {claimed}/300000"
    assert _get(client, key, "100-199") == (206, DATA[100:200])  # and the connection lives on


@pytest.mark.parametrize("after", [None, 0, 70_000])
def test_a_stall_delays_and_goes_on(faulty: Any, key: str, client: Any, after: int | None) -> None:
    faulty.proxy.add(Rule(stall(0.3, after=after)))
    begun = time.monotonic()
    assert _get(client, key) == (200, DATA)
    assert 0.3 <= time.monotonic() - begun < 2


def test_a_stall_in_mid_body_lets_the_first_bytes_through(faulty: Any, key: str, client: Any) -> None:
    faulty.proxy.add(Rule(stall(30, after=70_000)))
    client.timeout = 0.5
    client.request("GET", key, headers=serve.sign("GET", f"{client.host}:{client.port}", key, "", b""))
    answer = client.getresponse()
    assert answer.read(70_000) == DATA[:70_000]
    with pytest.raises(TimeoutError):
        answer.read(1)


def test_a_range_is_ignored_with_the_whole_object(faulty: Any, key: str, client: Any) -> None:
    faulty.proxy.add(Rule(ignore_range(), times=None))
    assert _get(client, key, "100-199") == (200, DATA)
    # s3fs signs the Range header, so the proxy has had to sign anew
    assert faulty.fs().cat_file(f"{faulty.url}/folder/object", start=100, end=200) == DATA


def test_an_object_is_replaced_between_two_requests(faulty: Any, key: str, client: Any) -> None:
    before = faulty.etag("folder/object")
    faulty.proxy.add(Rule(passed()), Rule(replace_once(lambda: faulty.put("folder/object", b"new"))))
    assert _get(client, key) == (200, DATA)
    assert _get(client, key) == (200, b"new")
    assert faulty.etag("folder/object") != before


def test_a_delay_holds_up_each_request(faulty: Any, key: str, client: Any) -> None:
    faulty.proxy.delay(0.1)
    begun = time.monotonic()
    for _ in range(3):
        _get(client, key, "0-9")
    assert time.monotonic() - begun >= 0.3


def test_chunked_requests_and_answers_pass_whole(faulty: Any, key: str) -> None:
    import fsspec

    fs = fsspec.filesystem("s3", **faulty.storage_options, skip_instance_cache=True)
    large = os.urandom(6_000_000)
    with fs.open(f"{faulty.url}/through", "wb") as file:
        file.write(large)
    assert faulty.get("through") == large
    assert fs.cat(f"{faulty.url}/through") == large
    assert [path.rpartition("/")[2] for path in fs.find(faulty.url)] == ["object", "through"]


@pytest.mark.parametrize("kind", ["gcs", "localstack_s3"])
def test_other_servers_are_reached_through_it_too(request: pytest.FixtureRequest, kind: str) -> None:
    server = request.getfixturevalue(kind).server
    with FaultProxy(server.endpoint) as proxy:
        bucket = Bucket(server, endpoint=proxy.endpoint)
        url = bucket.put("a/b", DATA)
        proxy.add(Rule(status(503), path="a(/|%2F)b"))
        assert bucket.fs().cat(url) == DATA  # fsspec tries again by itself
        assert bucket.fs().find(bucket.url) == [url.partition("://")[2]]
        assert 503 in [entry.status for entry in proxy.requests]


def test_obstore_reads_from_the_gcs_emulator_through_it(gcs: Bucket) -> None:
    gcs.put("a/b", DATA)
    with FaultProxy(gcs.server.endpoint) as proxy:
        # In a process of its own: obstore does not survive a fork of the process that has used it.
        code = (
            "import obstore, sys; from obstore.store import GCSStore; plain = {'allow_http': True};"
            "store = GCSStore(sys.argv[1], base_url=sys.argv[2], bearer_token='x', client_options=plain);"
            "sys.stdout.buffer.write(bytes(obstore.get_range(store, 'a/b', start=100, end=200)))"
        )
        done = subprocess.run([sys.executable, "-c", code, gcs.name, proxy.endpoint], capture_output=True)
        assert done.stdout == DATA[100:200], done.stderr
        assert [(entry.range, entry.status) for entry in proxy.requests] == [("bytes=100-199", 206)]


def test_a_hook_that_fails_is_told_at_the_end(s3_server: Any) -> None:
    def fail() -> None:
        raise LookupError("a mistake of the test")

    proxy = FaultProxy(s3_server.endpoint)
    proxy.add(Rule(replace_once(fail)))
    proxy.__enter__()
    with pytest.raises(http.client.RemoteDisconnected):
        _get(http.client.HTTPConnection(urllib.parse.urlsplit(proxy.endpoint).netloc, timeout=5), "/x/y")
    with pytest.raises(RuntimeError, match="the fault proxy itself failed") as caught:
        proxy.__exit__()
    assert isinstance(caught.value.__cause__, LookupError)
