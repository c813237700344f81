"""The cache of what formats learn of shards."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

from streamio.formats.kept import Kept
from tests.formats.memory_source import MemorySource


def test_the_least_recently_used_leave_first_and_the_latest_always_stays():
    kept = Kept(100)
    shards = [MemorySource(bytes(size), "s3://bucket/a") for size in range(5)]
    for shard in shards[:3]:
        kept.put(shard, shard.size, 40)
    assert [kept.get(shard) for shard in shards[:3]] == [None, 1, 2]
    kept.get(shards[1])
    kept.put(shards[3], 3, 40)
    assert [kept.get(shard) for shard in shards[:4]] == [None, 1, None, 3]
    kept.put(shards[4], 4, 1000)
    assert len(kept) == 1
    assert kept.get(shards[4]) == 4


def test_a_value_put_again_counts_once():
    kept = Kept(100)
    one, other = MemorySource(b"", "s3://bucket/a"), MemorySource(b"", "s3://bucket/b")
    kept.put(one, "one", 40)
    for number in range(10):
        kept.put(other, number, 60)
    assert (kept.get(one), kept.get(other)) == ("one", 9)


def test_it_pickles_as_an_empty_one():
    kept = Kept(100)
    kept.put(MemorySource(b"", "s3://bucket/a"), "x", 1)
    assert len(pickle.loads(pickle.dumps(kept))) == 0


def test_a_value_that_many_threads_want_is_made_once() -> None:
    kept: Kept[str] = Kept()
    source = MemorySource(b"x", "s3://bucket/a")
    made = []

    def work() -> None:
        with kept.making(source):
            if kept.get(source) is None:
                time.sleep(0.01)
                made.append(1)
                kept.put(source, "made", 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_a_value_that_could_not_be_made_is_made_by_the_next() -> None:
    kept: Kept[str] = Kept()
    source = MemorySource(b"x", "s3://bucket/a")
    for _ in range(2):
        with pytest.raises(ValueError, match="no"), kept.making(source):
            raise ValueError("no")
