"""The read path of one process, as blocking calls: sources, streams with read-ahead, and hints.

Threads ask here, `streamio.storage.fetch` reads on the io loop; this module waits, orders, keeps the budget.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from streamio.errors import ReadError
from streamio.storage.budget import Budget, Counters
from streamio.storage.faults import shown
from streamio.storage.fetch import Fetcher
from streamio.storage.loop import IoLoop, io_loop
from streamio.storage.settings import ReadSettings
from streamio.storage.shards import Shard

__all__ = ["ReadSettings", "Reader", "ShardSource"]

AHEAD = 8
"""Parts of one stream that are fetched ahead at most, however large the budget."""
HINT_LIFE = 60.0
"""Seconds after which a hint that nobody picked up makes room for other read-ahead."""
CLOSE_SECONDS = 2.0
GAP = 64 << 10
"""Ranges of one call that lie no further apart are read by one request."""


class Reader:
    """Reads shards in one process.

    Nothing is connected before the first read. All methods may be called from any thread. A reader does not
    survive a fork: a child makes its own.

    Args:
        settings: How to read.

    Attributes:
        budget: The byte budget of read-ahead.
        counters: What was done so far.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self.settings = settings
        self.budget = Budget(settings.prefetch_bytes)
        self.counters = Counters()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._io: IoLoop | None = None
        self._fetcher: Fetcher | None = None
        self._parts: set[_Part] = set()
        self._hints: OrderedDict[tuple[str, int], _Hint] = OrderedDict()

    def source(self, shard: Shard) -> ShardSource:
        """The bytes of a shard, as `streamio.formats.base.Source`. No I/O happens here."""
        return ShardSource(self, shard)

    def hint(self, shard: Shard, start: int, stop: int) -> None:
        """Begin to fetch the first parts of [start, stop) in the background, as far as the budget goes.

        A `stream` or `read` that begins at `start` picks them up. What nobody picks up is kept until `close`,
        or until other read-ahead needs its bytes after a minute.
        """
        place = shard.url, start
        if place in self._hints or self._closed:
            return
        hint, at = _Hint([], time.monotonic()), start
        while at < stop and len(hint.parts) < AHEAD:
            part = self._ahead(shard, at, min(at + self.settings.part_bytes, stop))
            if part is None:
                break
            hint.parts.append(part)
            at = part.stop
        with self._lock:
            kept = bool(hint.parts) and not self._closed and self._hints.setdefault(place, hint) is hint
        if not kept:
            self._drop_all(hint.parts)

    def close(self) -> None:
        """End all reads at once: whoever waits for one gets an error. May be called again."""
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
            parts, io, fetcher = list(self._parts), self._io, self._fetcher
            self._hints.clear()
        self._drop_all(parts)
        if io is not None and fetcher is not None and io.alive:
            # Waited for, so that no open connection is carried over a fork that comes next.
            concurrent.futures.wait([io.submit(fetcher.close())], timeout=CLOSE_SECONDS)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_many(self, shard: Shard, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges at once; those that lie close together by one request."""
        blocks = _blocks([_checked(shard, *bounds) for bounds in ranges])
        begun: list[tuple[int, list[_Part]]] = []
        try:
            for start, stop in blocks:
                parts = self._take_hint(shard, start, stop)
                begun.append((start, parts))
                at = parts[-1].stop if parts else start
                while at < stop:
                    parts.append(self._begin(shard, at, min(at + self.settings.part_bytes, stop)))
                    at = parts[-1].stop
            found: dict[int, bytes] = {}
            for start, parts in begun:
                chunks = [chunk for part in parts for chunk in self._wait(part)]
                found[start] = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                self._drop_all(parts)
        finally:
            for _, parts in begun:
                self._drop_all(parts)
        return _cut(found, blocks, ranges)

    def _stream(self, shard: Shard, start: int, stop: int) -> Iterator[bytes]:
        """Yield the parts of a range in order, with others in flight behind them."""
        parts = deque(self._take_hint(shard, start, stop))
        at = parts[-1].stop if parts else start
        size = self.settings.part_bytes
        try:
            while parts or at < stop:
                if not parts:
                    part = self._begin(shard, at, min(at + size, stop), held=True)
                    parts.append(part)
                    at = part.stop
                while at < stop and len(parts) < AHEAD:
                    further = self._ahead(shard, at, min(at + size, stop))
                    if further is None:
                        break
                    parts.append(further)
                    at = further.stop
                yield from self._wait(parts[0])
                self._drop(parts.popleft())
        finally:
            self._drop_all(parts)

    def _ahead(self, shard: Shard, start: int, stop: int) -> _Part | None:
        """Begin a part that nobody waits for yet, if its bytes fit the budget."""
        if not self.budget.try_acquire(stop - start):
            self._forget_old_hints()
            if not self.budget.try_acquire(stop - start):
                return None
        try:
            return self._begin(shard, start, stop, acquired=True)
        except BaseException:
            self.budget.release(stop - start)
            raise

    def _begin(self, shard: Shard, start: int, stop: int, *, held: bool = False, acquired: bool = False) -> _Part:
        """Start to fetch a part.

        Args:
            shard: Of what.
            start: First byte.
            stop: End.
            held: Whether to take its bytes from the budget, by force.
            acquired: Whether that has been done.
        """
        if self._pid != os.getpid():
            raise ReadError(
                f"{shown(shard.url)}: this reader was made in process {self._pid}; make one in each process"
            )
        with self._lock:
            if self._closed:
                raise _closed_error(shard.url, start, stop)
            if self._io is None or not self._io.alive:
                self._io, self._fetcher = io_loop(), Fetcher(self.settings, self.counters)
                self._io.users.add(self)
            assert self._fetcher is not None
            future = self._io.submit(self._fetcher.fetch(shard, start, stop))
            if held:
                self.budget.force(stop - start)
            part = _Part(shard.url, start, stop, future, stop - start if held or acquired else 0)
            self._parts.add(part)
            return part

    def _wait(self, part: _Part) -> list[bytes]:
        """The chunks of a part, once it is there. Waits in slices, so that signals are handled meanwhile."""
        if not part.future.done():
            began = time.monotonic()
            try:
                while not part.future.done():
                    concurrent.futures.wait([part.future], timeout=1.0)
                    if self._io is not None and not self._io.alive:
                        raise _closed_error(part.url, part.start, part.stop)
            finally:
                self.counters.add(waited=time.monotonic() - began)
        try:
            chunks = list(part.future.result())
        except concurrent.futures.CancelledError:
            raise _closed_error(part.url, part.start, part.stop) from None
        if self._closed:  # by another thread, which may have emptied the result before it was copied
            raise _closed_error(part.url, part.start, part.stop)
        return chunks

    def _drop(self, part: _Part) -> None:
        """Let go of a part: end its read if it still runs, and give its bytes back. May be called again."""
        with self._lock:
            if part not in self._parts:
                return
            self._parts.remove(part)
        if not part.future.cancel() and not part.failed:
            part.future.result().clear()  # a future stays alive until the garbage collector comes by
        self.budget.release(part.held)

    def _drop_all(self, parts: Iterable[_Part]) -> None:
        for part in parts:
            self._drop(part)

    def _take_hint(self, shard: Shard, start: int, stop: int) -> list[_Part]:
        """The parts that a hint has begun at `start`, as far as they lie before `stop`."""
        with self._lock:
            hint = self._hints.pop((shard.url, start), None)
        if hint is None:
            return []
        usable: list[_Part] = []
        for part in hint.parts:
            follows = part.start == (usable[-1].stop if usable else start)
            if follows and part.stop <= stop and not part.failed:
                usable.append(part)
            else:
                self._drop(part)
        return usable

    def _forget_old_hints(self) -> None:
        with self._lock:
            limit = time.monotonic() - HINT_LIFE
            old = [place for place, hint in self._hints.items() if hint.made < limit]
            parts = [part for place in old for part in self._hints.pop(place).parts]
        self._drop_all(parts)


class ShardSource:
    """Bytes of one shard; see `streamio.formats.base.Source`."""

    def __init__(self, reader: Reader, shard: Shard) -> None:
        self._reader = reader
        self._shard = shard

    @property
    def url(self) -> str:
        """The shard's URL."""
        return self._shard.url

    @property
    def size(self) -> int:
        """The shard's length in bytes."""
        return self._shard.size

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes [start, stop).

        Raises:
            ValueError: The range does not lie within the shard.
            ReadError: The read failed for good (`ShardChangedError`: it is another object by now).
            AccessError: The store refuses.
            CredentialsError: There are no valid credentials.
        """
        return self._reader._read_many(self._shard, [(start, stop)])[0]  # noqa: SLF001 - two halves of one thing

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several ranges at once, in the order asked for; errors as for `read`."""
        return self._reader._read_many(self._shard, ranges)  # noqa: SLF001

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes [start, stop) in order as chunks of any length, read ahead; errors as for `read`."""
        _checked(self._shard, start, self.size if stop is None else stop)
        return self._reader._stream(self._shard, start, self.size if stop is None else stop)  # noqa: SLF001


@dataclass(eq=False)
class _Part:
    """A range that is being fetched, or has been; `held` of its bytes are taken from the budget."""

    url: str
    start: int
    stop: int
    future: concurrent.futures.Future[list[bytes]]
    held: int

    @property
    def failed(self) -> bool:
        done = self.future.done()
        return done and (self.future.cancelled() or self.future.exception() is not None)


@dataclass
class _Hint:
    parts: list[_Part]
    made: float


def _checked(shard: Shard, start: int, stop: int) -> tuple[int, int]:
    if not 0 <= start <= stop <= shard.size:
        raise ValueError(f"{shown(shard.url)}: bytes {start} to {stop} do not lie within its {shard.size} bytes")
    return start, stop


def _closed_error(url: str, start: int, stop: int) -> ReadError:
    return ReadError(f"{shown(url)}: the reader was closed while bytes {start}-{stop - 1} were wanted")


def _blocks(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges merged where they overlap or lie close together, in order; empty ones left out."""
    blocks: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if start == stop:
            continue
        if blocks and start <= blocks[-1][1] + GAP:
            blocks[-1] = (blocks[-1][0], max(stop, blocks[-1][1]))
        else:
            blocks.append((start, stop))
    return blocks


def _cut(found: dict[int, bytes], blocks: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The ranges asked for, out of the blocks that were read."""
    pieces: list[bytes] = []
    for start, stop in ranges:
        if start == stop:
            pieces.append(b"")
            continue
        first, last = next((a, b) for a, b in blocks if a <= start and stop <= b)
        block = found[first]
        pieces.append(block if (start, stop) == (first, last) else block[start - first : stop - first])
    return pieces
