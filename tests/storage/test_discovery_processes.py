from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import threading
from typing import Any

import pytest

from streamio.storage.discovery import discover


def _list(url: str, options: dict[str, Any], results: Any) -> None:
    try:
        results.put(len(discover([url, f"{url}/*.jsonl"], storage_options=options)))
    except BaseException as error:
        results.put(repr(error))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_a_child_lists_whatever_its_parent_did_before(store: str, method: str, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue(store)
    bucket.put("x.jsonl", b"{}")
    assert len(discover(bucket.url, storage_options=bucket.storage_options)) == 1
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=_list, args=(bucket.url, bucket.storage_options, results))
    child.start()
    assert results.get(timeout=60) == 1
    child.join(10)
    assert child.exitcode == 0


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_a_parent_is_not_disturbed_by_what_its_forked_children_do(store: str, request: pytest.FixtureRequest) -> None:
    # Children that close inherited connections take them out of the epoll set that they share with the parent.
    bucket = request.getfixturevalue(store)
    bucket.put("x.jsonl", b"{}")
    context = multiprocessing.get_context("fork")

    def use() -> None:
        assert len(discover([bucket.url, f"{bucket.url}/"], storage_options=bucket.storage_options)) == 1

    use()
    for round_ in range(6):
        threads = [threading.Thread(target=use) for _ in range(2 * (round_ % 2))]
        for thread in threads:
            thread.start()
        results = context.Queue()
        child = context.Process(target=_list, args=(bucket.url, bucket.storage_options, results))
        child.start()
        assert results.get(timeout=30) == 1
        child.join(10)
        for thread in threads:
            thread.join(10)
        use()


@pytest.mark.parametrize("first", ["fsspec", "streamio.storage.urls"])
def test_a_childs_garbage_collector_closes_no_connection_of_its_parent(first: str, s3: Any) -> None:
    # fsspec forgets its file systems in a child by a hook of its own, which runs first where it was imported first.
    program = f"""
import gc, json, multiprocessing, sys, time, weakref
import {first}
import fsspec
from streamio.storage import objects
url, options = json.loads(sys.argv[1])
def child():
    fsspec.filesystem("memory")
    gc.collect()
    sys.exit(not all(reference() for reference in held))
objects.put(f"{{url}}/x", b"1", options)
held = [weakref.ref(fs) for fs in fsspec.get_filesystem_class("s3")._cache.values()]
assert held
for _ in range(3):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    begun = time.monotonic()
    assert objects.get(f"{{url}}/x", options) == b"1"
    assert time.monotonic() - begun < 5
"""
    arguments = [sys.executable, "-c", program, json.dumps([s3.url, s3.storage_options])]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
