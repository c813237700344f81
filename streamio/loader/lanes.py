"""Reads one lane of an indexed plan: slots in, decoded records out, splits loaded ahead in threads.

Holds the splits of the current window and, as far as the byte budget goes, those that come after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from streamio.formats.base import Bad, CorruptError, IndexedFormat, Record, Rows
from streamio.plan import IndexedSplits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.loader.spec import Spec
    from streamio.loader.threads import Threads
    from streamio.plan import IndexedPlan, Lane
    from streamio.storage.reader import Reader

T = TypeVar("T")

#: A split as loaded, or why it could not be.
Split: TypeAlias = Rows | Bad

#: Split, number of the record in it, and what it holds.
Slot: TypeAlias = tuple[int, int, Record | Bad]

#: Slots that are made into Python records at once: enough to spread the cost of a call into Arrow.
BLOCK = 1024

#: Decoded bytes that such a block may have, at about.
BLOCK_BYTES = 8 << 20

#: Splits that a lane loads ahead at most, however small they are.
MOST_AHEAD = 64


class SplitLoader:
    """Loads splits of one data set in threads, and remembers those that can't be decoded.

    Args:
        spec: The data set.
        reader: Where bytes come from.
        threads: Where loads run.
    """

    def __init__(self, spec: Spec, reader: Reader, threads: Threads) -> None:
        assert isinstance(spec.splits, IndexedSplits)
        assert isinstance(spec.format, IndexedFormat)
        self.splits = spec.splits
        self.budget = reader.budget
        self.bad: dict[int, Bad] = {}
        mean = spec.splits.nbytes.sum() / spec.splits.records.sum()
        #: Slots of a block: `BLOCK`, or fewer where records are large.
        self.block = max(1, min(BLOCK, int(BLOCK_BYTES / max(1.0, mean))))
        self._shards = spec.shards
        self._format = spec.format
        self._reader = reader
        self._threads = threads

    def start(self, split: int) -> Future[Split]:
        """Begin to load a split."""
        return self._threads.submit(lambda: self._load(split))

    def url(self, split: int) -> str:
        """The URL of a split's shard."""
        return self._shards[int(self.splits.shard[split])].url

    def cost(self, split: int) -> int:
        """Bytes that a split loaded ahead is counted with."""
        return int(max(self.splits.nbytes[split], self.splits.wire[split]))

    def _load(self, split: int) -> Split:
        if split in self.bad:
            return self.bad[split]
        shard, part = self._shards[int(self.splits.shard[split])], int(self.splits.part[split])
        records = int(self.splits.records[split])
        try:
            rows = self._format.load(self._reader.source(shard), part)
            if len(rows) == records:
                return rows
            bad = Bad("corrupt", f"it holds {len(rows)} records where its footer says {records}", f"split {part}")
        except CorruptError as error:
            bad = Bad("corrupt", str(error), error.position or f"split {part}")
        self.bad[split] = bad
        return bad


class LaneReader:
    """Gives the decoded values of any places of a lane, fastest when asked for in order.

    Args:
        plan: The pass that the lane is of.
        lane: The lane.
        loader: Where splits come from.
        ahead: Whether to load splits before they are asked for.
    """

    def __init__(self, plan: IndexedPlan, lane: Lane, loader: SplitLoader, *, ahead: bool = True) -> None:
        self.plan = plan
        self.lane = lane
        self._loader = loader
        self._ahead = ahead
        self._held: dict[int, Split] = {}
        self._coming: dict[int, tuple[Future[Split], int]] = {}
        self._window = -1
        self._order: NDArray[np.int64] = np.empty(0, np.int64)
        self._block: tuple[int, list[Slot]] = (0, [])

    def read(self, low: int, high: int) -> list[Slot]:
        """The slots at places [low, high) of the lane, in the order of delivery."""
        slots: list[Slot] = []
        while low < high:
            first, block = self._block
            if not first <= low < first + len(block):
                self._make_block(low, high)
                first, block = self._block
            part = block[low - first : high - first]
            slots += part
            low += len(part)
        return slots

    def values(self, slots: NDArray[np.int64]) -> list[Slot]:
        """The values of slots whose splits are held, in the order given."""
        splits, numbers = self.plan.locate(slots)
        found: list[Any] = [None] * len(slots)
        for split in np.unique(splits).tolist():
            where = np.flatnonzero(splits == split)
            rows = self._held[split]
            taken: Sequence[Record | Bad]
            taken = [rows] * len(where) if isinstance(rows, Bad) else rows.take(numbers[where].tolist())
            for place, number, value in zip(where.tolist(), numbers[where].tolist(), taken, strict=True):
                found[place] = (split, number, value)
        return found

    def hold(self, start: int, stop: int) -> None:
        """Load the splits of the slots [start, stop) and let go of all others; then load on what comes after."""
        needed = self.plan.splits_between(start, stop).tolist()
        for split in needed:
            if split not in self._held and split not in self._coming:
                self._coming[split] = (self._loader.start(split), 0)
        self._held = {split: self._held[split] for split in needed if split in self._held}
        for split in needed:
            if split not in self._held:
                self._held[split] = self._arrive(split)
        if self._ahead:
            self._load_ahead(stop)

    def close(self) -> None:
        """Give back what was loaded ahead."""
        for future, cost in self._coming.values():
            future.cancel()
            self._loader.budget.release(cost)
        self._coming.clear()
        self._held.clear()

    def _make_block(self, low: int, high: int) -> None:
        """Decode the places from `low` on: at least up to `high`, or to the end of their window."""
        lane = self.lane
        if lane.window:
            window = lane.window_at(low)
            first, last = lane.span(window)
            if window != self._window:
                self._window, self._order = window, lane.order(window)
                self.hold(lane.start + first, lane.start + last)
            stop = min(last, max(high, low + self._loader.block))
            slots = self._order[low - first : stop - first]
        else:
            stop = min(lane.length, max(high, low + self._loader.block))
            self.hold(lane.start + low, lane.start + stop)
            slots = np.arange(lane.start + low, lane.start + stop, dtype=np.int64)
        self._block = (low, self.values(slots))

    def _arrive(self, split: int) -> Split:
        future, cost = self._coming.pop(split)
        self._loader.budget.release(cost)
        return wait(future)

    def _load_ahead(self, slot: int) -> None:
        """Begin to load the lane's splits behind `slot`, in order, while the budget lasts."""
        coming = self.plan.splits_between(slot, self.lane.start + self.lane.length)
        for split in coming[:MOST_AHEAD].tolist():
            if split in self._held or split in self._coming:
                continue
            cost = self._loader.cost(split)
            if not self._loader.budget.try_acquire(cost):
                break
            self._coming[split] = (self._loader.start(split), cost)


def wait(future: Future[T]) -> T:
    """A future's result; wakes now and then so that Ctrl-C is heard everywhere.

    What it waits for has its own deadline.
    """
    while not futures.wait([future], timeout=1.0).done:
        pass
    return future.result()
