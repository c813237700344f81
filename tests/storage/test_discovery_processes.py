from __future__ import annotations

import multiprocessing
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
