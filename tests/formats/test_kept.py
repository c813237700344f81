"""The cache of what formats learn of shards."""

from __future__ import annotations

import pickle

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
