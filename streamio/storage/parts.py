"""Byte ranges on their way and the buffers that come of them: cut into equal requests, and made one again.

Nothing here reads or waits.
"""

from __future__ import annotations

import concurrent.futures
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from streamio.storage.shards import Shard

Buffer: TypeAlias = "bytes | memoryview"
"""What a read gives: `len`, slices, comparison and the buffer protocol; never written to."""

SHORT = 64 << 10
"""Buffers below this many bytes are given as `bytes`: copying these costs nothing."""
GAP = 4 << 10
"""Ranges of one call that lie no further apart are read by one request."""


@dataclass(eq=False)
class Part:
    """A range that is being fetched, or has been; `held` of its bytes are taken from the budget."""

    url: str
    start: int
    stop: int
    future: concurrent.futures.Future[list[Buffer]]
    held: int

    @property
    def failed(self) -> bool:
        """Whether its read has ended without its bytes."""
        done = self.future.done()
        return done and (self.future.cancelled() or self.future.exception() is not None)


@dataclass(eq=False)
class Run:
    """A range that is read in order: parts on their way that nobody has used yet.

    Attributes:
        at: Where the next part will begin.
        touched: When a hint was given the last time, by the monotonic clock.
    """

    shard: Shard
    start: int
    stop: int
    at: int = field(init=False)
    parts: deque[Part] = field(default_factory=deque)
    touched: float = 0.0

    def __post_init__(self) -> None:
        self.at = self.start

    def add(self, part: Part) -> None:
        """Go on by a part, which begins where the latest one ends."""
        self.parts.append(part)
        self.at = part.stop

    @property
    def held(self) -> int:
        """Bytes that its parts have taken from the budget."""
        return sum(part.held for part in self.parts)


def next_stop(at: int, stop: int, part_bytes: int) -> int:
    """Where the first of the equal parts of [at, stop) ends.

    There are as many parts as come closest to `part_bytes` each, and at least one; taken one after the other they
    differ by a byte at most, so that no range ends in a tiny request.
    """
    count = max(1, round((stop - at) / part_bytes))
    return at + (stop - at) // count


def blocks(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges merged where they overlap or lie close together, in order; empty ones left out."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if start == stop:
            continue
        if merged and start <= merged[-1][1] + GAP:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def joined(chunks: Iterable[Buffer], nbytes: int) -> Buffer:
    """Chunks of `nbytes` bytes in all as one buffer; numpy copies without holding other threads up."""
    import pyarrow as pa

    whole = np.frombuffer(pa.allocate_buffer(nbytes), np.uint8)  # malloc would keep it for its thread
    at = 0
    for chunk in chunks:
        whole[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
        at += len(chunk)
        del chunk  # before the next one is waited for
    whole.flags.writeable = False
    return whole.data


def cut(found: dict[int, Buffer], ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
    """The ranges asked for, out of the blocks that were read.

    Args:
        found: First byte to buffer.
        ranges: Each lies within one of the buffers, or is empty.
    """
    pieces: list[Buffer] = []
    for start, stop in ranges:
        piece: Buffer = b""
        if start < stop:
            first, block = next((a, b) for a, b in found.items() if a <= start and stop <= a + len(b))
            whole = stop - start == len(block)
            piece = block if whole else memoryview(block)[start - first : stop - first]
        pieces.append(bytes(piece) if len(piece) < SHORT else piece)
    return pieces
