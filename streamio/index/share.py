"""Reads one rank's share of the shards for an index: footers in threads, all else in processes.

A pool of its own and no torch: obstore must not be carried over a fork, so processes are started by forkserver.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from streamio.errors import StreamioError, WorkerError
from streamio.formats.base import IndexedFormat
from streamio.formats.counting import THREADS
from streamio.index import scan
from streamio.storage.reader import Reader

if TYPE_CHECKING:
    from streamio.index.parts import Parts
    from streamio.index.scan import Scanner
    from streamio.index.table import Entry
    from streamio.storage.settings import ReadSettings
    from streamio.storage.shards import Shard

S = TypeVar("S")
T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Seconds of work that are lost at most when all processes are killed.
PART_SECONDS = 30.0

_LOG_SECONDS = 10.0

#: Calls that wait for a thread or process at most.
_AHEAD = 256

#: Shards, and their bytes, that a process is given at once.
_BATCH = 16
_BATCH_BYTES = 64 << 20


class ShareReader:
    """Reads shards.

    Args:
        scanner: What is read of each.
        settings: How.
        workers: Processes; 1 is this one.
        parts: Where entries are kept meanwhile.
        progress: See `build_index`.
    """

    def __init__(
        self,
        scanner: Scanner,
        settings: ReadSettings,
        workers: int,
        parts: Parts,
        progress: Callable[[int, int, int], None] | None,
    ) -> None:
        self._scanner = scanner
        self._settings = settings
        self._workers = workers
        self._parts = parts
        self._progress = progress

    def read(self, shards: Sequence[Shard]) -> list[Entry]:
        """Their entries, in any order.

        Raises:
            WorkerError: A worker process died.
            StreamioError: A shard can't be read, or has no place in the data set.
        """
        done: list[Entry] = []
        written, nbytes, told = 0, 0, time.monotonic()
        saved = told
        try:
            for entry in self._entries(shards):
                done.append(entry)
                nbytes += entry.size
                now = time.monotonic()
                if self._progress is not None:
                    self._progress(len(done), len(shards), nbytes)
                elif now - told > _LOG_SECONDS:
                    logger.info("Indexed %d of %d shards, %d bytes.", len(done), len(shards), nbytes)
                    told = now
                if now - saved > PART_SECONDS:
                    self._parts.write(done[written:])
                    written, saved = len(done), time.monotonic()
        except BaseException:
            with suppress(StreamioError):  # what is wrong already matters more
                if done[written:]:
                    self._parts.write(done[written:])
            raise
        return done

    def _entries(self, shards: Sequence[Shard]) -> Iterator[Entry]:
        workers = min(self._workers, len(shards))
        if workers > 1 and not isinstance(self._scanner.format, IndexedFormat):
            yield from self._in_processes(shards, workers)
            return
        # In this process, through fsspec, so that it may still fork.
        with Reader(replace(self._settings, engine="fsspec")) as reader:
            if isinstance(self._scanner.format, IndexedFormat):
                with ThreadPoolExecutor(THREADS, "streamio-index") as pool:
                    yield from _spread(pool, lambda one: self._scanner.entry(reader.source(one), one.version), shards)
            else:
                yield from self._scanner.entries(reader, shards)

    def _in_processes(self, shards: Sequence[Shard], workers: int) -> Iterator[Entry]:
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        stopped = context.Event()
        pool = ProcessPoolExecutor(workers, context, scan.begin, (self._scanner, self._settings, stopped))
        try:
            for entries, error in _spread(pool, scan.scan, _batches(shards, workers)):
                yield from entries
                if error is not None:
                    raise error
        except BrokenProcessPool:
            raise WorkerError(
                "A process that read shards for an index has died, or could not be started. If memory ran out, use "
                "fewer workers (workers=). A script that calls build_index needs `if __name__ == '__main__':` around "
                "what it does, as processes import it anew. What was read is kept: start it again to go on."
            ) from None
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _batches(shards: Sequence[Shard], workers: int) -> Iterator[Sequence[Shard]]:
    """What processes are given at once: of many small shards several, so that the next ones can be on their way."""
    most = max(1, min(_BATCH, len(shards) // (8 * workers)))
    batch: list[Shard] = []
    for shard in shards:
        batch.append(shard)
        if len(batch) == most or sum(one.size for one in batch) > _BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def _spread(pool: Executor, call: Callable[[S], T], wanted: Iterable[S]) -> Iterator[T]:
    """Results as they come, with a bounded number of calls waiting."""
    items = iter(wanted)
    running: set[Future[T]] = set()
    try:
        while True:
            running |= {pool.submit(call, item) for item in islice(items, _AHEAD - len(running))}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        for future in running:
            future.cancel()
