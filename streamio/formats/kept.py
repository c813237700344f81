"""What formats have learnt of shards (footers and the like), kept within bounds of memory.

It is a cache for one process: it forgets what was least used, and pickles as an empty one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

from streamio.formats.base import Source

T = TypeVar("T")

MOST = 1 << 23
"""Bytes that one cache keeps by default."""


class Kept(Generic[T]):
    """Values by shard (URL and size); the least recently used leave first. May be used by several threads.

    Args:
        most: Bytes that are kept; the latest value always is.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = Lock()
        self._values: OrderedDict[tuple[str, int], tuple[T, int]] = OrderedDict()
        self._bytes = 0
        self._making: dict[tuple[str, int], Lock] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, source: Source) -> T | None:
        """The value of a shard, if it is here."""
        key = (source.url, source.size)
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    @contextmanager
    def making(self, source: Source) -> Iterator[None]:
        """Hold up others who are about to make the value of the same shard: they find it made."""
        key = (source.url, source.size)
        with self._lock:
            lock = self._making.setdefault(key, Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._making.pop(key, None)

    def put(self, source: Source, value: T, weight: int) -> None:
        """Keep the value of a shard, which takes about `weight` bytes."""
        key = (source.url, source.size)
        with self._lock:
            self._bytes += weight - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, weight
            while self._bytes > self._most and len(self._values) > 1:
                self._bytes -= self._values.popitem(last=False)[1][1]

    def __reduce__(self) -> tuple[type[Kept[T]], tuple[int]]:
        return (type(self), (self._most,))
