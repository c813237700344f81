"""The `Source` protocol over bytes in memory, handing them out in chunks of random length.

It counts what is asked of it, and fails where a format asks for what is not there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


class MemorySource:
    """One shard held in memory.

    Args:
        data: Its bytes.
        url: Its URL; the suffix tells formats the compression.
        chunk: The longest chunk of a stream, in bytes; each has a length of 1 to this many.
        seed: Of the random chunk lengths.
        views: Whether bytes come as memoryviews, as they may from a store.
    """

    def __init__(self, data: bytes, url: str, chunk: int = 1 << 16, seed: int = 0, views: bool = True) -> None:
        self.data: bytes | memoryview = memoryview(data) if views else data
        self.url = url
        self.size = len(data)
        self.chunk = chunk
        self.random = random.Random(seed)
        self.reads: list[tuple[int, int]] = []
        self.open_streams = 0

    def read(self, start: int, stop: int) -> bytes | memoryview:
        assert 0 <= start < stop <= self.size, f"[{start}, {stop}) of {self.size} bytes"
        self.reads.append((start, stop))
        return self.data[start:stop]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        return [self.read(start, stop) for start, stop in ranges]

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[bytes | memoryview]:
        stop = self.size if stop is None else stop
        assert 0 <= start <= stop <= self.size, f"[{start}, {stop}) of {self.size} bytes"
        self.open_streams += 1
        try:
            while start < stop:
                length = self.random.randint(1, self.chunk)
                yield self.data[start : min(start + length, stop)]
                start += length
        finally:
            self.open_streams -= 1
