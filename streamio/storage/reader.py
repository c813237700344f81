"""The read path of one process, as blocking calls: sources, streams with read-ahead, and hints.

Threads ask here, `streamio.storage.fetch` reads on the io loop; this module waits, orders, keeps the budget.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from streamio.errors import ReadError
from streamio.storage.budget import Budget, Counters
from streamio.storage.faults import shown
from streamio.storage.fetch import Fetcher
from streamio.storage.loop import IoLoop, io_loop
from streamio.storage.parts import Buffer, Part, Run, blocks, cut, joined, next_stop
from streamio.storage.settings import ReadSettings
from streamio.storage.shards import Shard

__all__ = ["Buffer", "ReadSettings", "Reader", "ShardSource"]

FIRST = 2
"""Parts of a stream in flight until its first one is there, so that this one does not share the wire with many."""
HINT_LIFE = 60.0
"""Seconds after which a hint that nobody picked up or repeated makes room for other read-ahead."""
CLOSE_SECONDS = 2.0


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
        self._lock = threading.RLock()
        self._closed = False
        self._io: IoLoop | None = None
        self._fetcher: Fetcher | None = None
        self._parts: set[Part] = set()
        self._streams = 0
        self._hints: dict[tuple[str, int], Run] = {}

    def source(self, shard: Shard) -> ShardSource:
        """The bytes of a shard, as `streamio.formats.base.Source`. No I/O happens here."""
        return ShardSource(self, shard)

    def hint(self, shard: Shard, start: int, stop: int) -> bool:
        """Begin to fetch [start, stop) in the background, as far as the budget goes.

        Given again for the same place it goes on from there with what has become free, so a consumer may call it as
        often as it likes. A `stream` or `read` that begins at `start` picks up what was begun. What nobody picks up
        is kept until `close`, or until other read-ahead needs its bytes a minute after the latest call.

        Returns:
            Whether all of it has been begun, so that what comes next may be hinted.
        """
        place = shard.url, start
        with self._lock:
            if self._closed:
                return False
            run = self._hints.pop(place, None) or Run(shard, start, stop)
            run.stop, run.touched = max(stop, run.at), time.monotonic()
            complete = self._extend(run)
            if run.parts:
                self._hints[place] = run
            return complete

    def close(self) -> None:
        """End all reads at once: whoever waits for one gets an error. May be called again."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._closed:
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

    def _read_many(self, shard: Shard, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Read ranges at once; those that lie close together by one request."""
        runs: list[Run] = []
        try:
            for start, stop in blocks([_checked(shard, *bounds) for bounds in ranges]):
                run = self._take_hint(shard, start, stop)
                runs.append(run)
                while run.at < stop:
                    run.add(self._begin(shard, run.at, next_stop(run.at, stop, self.settings.part_bytes)))
            return cut({run.start: self._gather(run) for run in runs}, ranges)
        finally:
            for run in runs:
                self._drop_all(run.parts)

    def _gather(self, run: Run) -> Buffer:
        """All bytes of a run as one buffer; copied only where they came in several."""
        if len(run.parts) == 1 and len(chunks := self._wait(run.parts[0])) == 1:
            self._drop(run.parts.popleft())
            return chunks[0]
        return joined(self._handed_over(run), run.stop - run.start)

    def _stream(self, shard: Shard, start: int, stop: int) -> Iterator[Buffer]:
        """Yield the chunks of a range in order, with others in flight behind them."""
        run = self._take_hint(shard, start, stop)
        with self._lock:
            self._streams += 1
        try:
            yield from self._handed_over(run, ahead=True)
        finally:
            with self._lock:
                self._streams -= 1
            self._drop_all(run.parts)

    def _handed_over(self, run: Run, *, ahead: bool = False) -> Iterator[Buffer]:
        """The chunks of a run; each part is let go when its last one has been used."""
        at_first = not run.parts
        while run.parts or run.at < run.stop:
            if not run.parts:
                stop = next_stop(run.at, run.stop, self.settings.part_bytes)
                run.add(self._begin(run.shard, run.at, stop, held=True))
            if ahead:
                self._extend(run, FIRST if at_first else None)
            chunks = self._wait(run.parts[0])
            if ahead and at_first:
                self._extend(run)  # before anything is handed over: a hint that comes next stands behind
            at_first = False
            yield from chunks
            del chunks
            self._drop(run.parts.popleft())

    def _extend(self, run: Run, most: int | None = None) -> bool:
        """Begin further parts of a run, as far as the budget goes, and this run's share of it.

        Returns:
            Whether all of it has been begun.
        """
        share = self.budget.limit // max(1, self._streams)
        while run.at < run.stop and (most is None or len(run.parts) < most):
            stop = next_stop(run.at, run.stop, self.settings.part_bytes)
            if run.parts and run.held + stop - run.at > share:
                return False
            part = self._ahead(run.shard, run.at, stop)
            if part is None:
                return False
            run.add(part)
        return run.at >= run.stop

    def _ahead(self, shard: Shard, start: int, stop: int) -> Part | None:
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

    def _begin(self, shard: Shard, start: int, stop: int, *, held: bool = False, acquired: bool = False) -> Part:
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
            part = Part(shard.url, start, stop, future, stop - start if held or acquired else 0)
            self._parts.add(part)
            return part

    def _wait(self, part: Part) -> list[Buffer]:
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

    def _drop(self, part: Part) -> None:
        """Let go of a part: end its read if it still runs, and give its bytes back. May be called again."""
        with self._lock:
            if part not in self._parts:
                return
            self._parts.remove(part)
        if not part.future.cancel() and not part.failed:
            part.future.result().clear()  # a future stays alive until the garbage collector comes by
        self.budget.release(part.held)

    def _drop_all(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self._drop(part)

    def _take_hint(self, shard: Shard, start: int, stop: int) -> Run:
        """A run over [start, stop) with the parts that a hint has begun of it, so far as they were no failure."""
        run = Run(shard, start, stop)
        with self._lock:
            hint = self._hints.pop((shard.url, start), None)
        for part in hint.parts if hint is not None else ():
            if part.start == run.at and part.stop <= stop and not part.failed:
                run.add(part)
            else:
                self._drop(part)
        return run

    def _forget_old_hints(self) -> None:
        with self._lock:
            limit = time.monotonic() - HINT_LIFE
            old = [place for place, hint in self._hints.items() if hint.touched < limit]
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

    def read(self, start: int, stop: int) -> Buffer:
        """Exactly the bytes [start, stop): `bytes` where they are few (under 64 KiB), else either kind of buffer.

        Raises:
            ValueError: The range does not lie within the shard.
            ReadError: The read failed for good (`ShardChangedError`: it is another object by now).
            AccessError: The store refuses.
            CredentialsError: There are no valid credentials.
        """
        return self._reader._read_many(self._shard, [(start, stop)])[0]  # noqa: SLF001 - two halves of one thing

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Several ranges at once, in the order asked for; errors as for `read`."""
        return self._reader._read_many(self._shard, ranges)  # noqa: SLF001

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[Buffer]:
        """The bytes [start, stop) in order as chunks of any length, read ahead; errors as for `read`."""
        _checked(self._shard, start, self.size if stop is None else stop)
        return self._reader._stream(self._shard, start, self.size if stop is None else stop)  # noqa: SLF001


def _checked(shard: Shard, start: int, stop: int) -> tuple[int, int]:
    if not 0 <= start <= stop <= shard.size:
        raise ValueError(f"{shown(shard.url)}: bytes {start} to {stop} do not lie within its {shard.size} bytes")
    return start, stop


def _closed_error(url: str, start: int, stop: int) -> ReadError:
    return ReadError(f"{shown(url)}: the reader was closed while bytes {start}-{stop - 1} were wanted")
