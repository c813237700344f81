"""Reads one lane of an indexed plan: places in, decoded slots out, made ahead in a thread.

Holds the splits of the current window and, as far as the byte budget goes, those that come after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from streamio.loader.ahead import Ahead
from streamio.loader.chunk import Chunk, gathered, joined, with_records
from streamio.loader.splits import Coming, Pieces, Split, SplitLoader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.plan import IndexedPlan, Lane

#: Slots that are made into Python records at once: enough to spread the cost of a call into Arrow.
BLOCK = 8192

#: Decoded bytes that such a block may have, at about.
BLOCK_BYTES = 4 << 20

#: Bytes of such blocks that are made ahead, at about.
AHEAD_BYTES = 16 << 20

#: What a record takes beside its values.
RECORD_BYTES = 512

#: Splits that a lane loads ahead at most, however small they are.
MOST_AHEAD = 64


class Holder:
    """The splits of a pass that are held at the moment.

    Args:
        plan: The pass.
        loader: Where splits come from.
        columnar: Whether slots are wanted as columns, where the format has them.
    """

    def __init__(self, plan: IndexedPlan, loader: SplitLoader, *, columnar: bool) -> None:
        self._plan = plan
        self._loader = loader
        self._columnar = columnar
        self._held: dict[int, Split] = {}
        self._coming: dict[int, Coming] = {}

    def gather(self, slots: NDArray[np.int64]) -> Chunk:
        """The values of slots whose splits are held, in the order given."""
        split, number = self._plan.locate(slots)
        self._loader.used(split)
        return gathered(self._held, split, number, self._loader.splits.first, columnar=self._columnar)

    def hold(self, ranges: NDArray[np.int64], following: NDArray[np.int64] | None = None) -> None:
        """Hold the splits of some slots and let go of all others.

        Args:
            ranges: The slots, as ranges [start, stop).
            following: Those that come next, of which splits are loaded ahead; None for none.
        """
        needed = self._rows(ranges)
        for split in needed:
            if split not in self._held and split not in self._coming and not self._loader.large(split):
                self._coming[split] = self._loader.start(split)
        for split in [split for split in self._held if split not in needed]:
            self._let_go(split)
        for split, (low, high) in needed.items():
            if self._loader.large(split):
                self._reach(split, low, high)
            elif split not in self._held:
                self._held[split] = self._coming.pop(split).arrive()
        if following is not None:
            self._load_ahead(following)

    def close(self) -> None:
        """Give back what was loaded ahead."""
        for coming in self._coming.values():
            coming.give_up()
        self._coming.clear()
        for split in list(self._held):
            self._let_go(split)

    def _let_go(self, split: int) -> None:
        rows = self._held.pop(split)
        if isinstance(rows, Pieces):
            rows.close()

    def _reach(self, split: int, low: int, high: int) -> None:
        """Hold the rows [low, high) of a large split."""
        pieces = self._held.get(split)
        if isinstance(pieces, Pieces) and pieces.reach(low, high):
            return
        if pieces is not None:
            self._let_go(split)
        self._held[split] = pieces = self._loader.pieces(split)
        pieces.reach(low, high)

    def _rows(self, ranges: NDArray[np.int64]) -> dict[int, tuple[int, int]]:
        """The splits that slots lie in, in order, and from which to which row of each."""
        plan, found = self._plan, dict[int, tuple[int, int]]()
        for start, stop in ranges.tolist():
            for place in plan.between(start, stop):
                split, first = int(plan.splits[place]), int(plan.offsets[place])
                low, high = max(0, start - first), min(stop - first, int(plan.offsets[place + 1]) - first)
                before = found.get(split, (low, high))
                found[split] = min(before[0], low), max(before[1], high)
        return found

    def _load_ahead(self, ranges: NDArray[np.int64]) -> None:
        """Begin to load the splits of slots, in order, while the budget lasts."""
        most = MOST_AHEAD
        for start, stop in ranges[:MOST_AHEAD].tolist():
            splits = self._plan.splits_between(start, stop)[:most].tolist()
            most -= len(splits)
            for split in splits:
                if split in self._held or split in self._coming:
                    continue
                coming = None if self._loader.large(split) else self._loader.start_ahead(split)
                if coming is None:
                    return
                self._coming[split] = coming


class LaneReader:
    """Gives the decoded slots at the places of a lane, fastest when asked for in order.

    Args:
        plan: The pass that the lane is of.
        lane: The lane.
        loader: Where splits come from.
        columnar: Whether slots are wanted as columns, where the format has them.
        records: Whether they become records in this process: that is done ahead as well where there is time.
    """

    def __init__(
        self, plan: IndexedPlan, lane: Lane, loader: SplitLoader, *, columnar: bool, records: bool = False
    ) -> None:
        self._meanwhile = with_records if records else None
        self._plan = plan
        self._lane = lane
        self._loader = loader
        self._columnar = columnar
        self._chunks: Ahead[Chunk] | None = None
        self._next = 0
        self._rest: Chunk | None = None

    def read(self, low: int, high: int) -> Chunk:
        """The slots at places [low, high) of the lane, in the order of delivery."""
        if self._chunks is None or low != self._next:
            self.close()
            name = f"streamio-lane-{self._lane.row}-{self._lane.column}"
            self._chunks = Ahead(self._from(low), self._weigh, AHEAD_BYTES, name, self._meanwhile)
        self._next = high
        parts: list[Chunk] = []
        wanted = high - low
        while wanted:
            chunk = self._rest or next(self._chunks)
            part = chunk.cut(0, min(wanted, len(chunk)))
            self._rest = chunk.cut(len(part), len(chunk)) if len(part) < len(chunk) else None
            parts.append(part)
            wanted -= len(part)
        return joined(parts)

    def stop(self) -> None:
        """Tell the thread to end."""
        if self._chunks is not None:
            self._chunks.stop()

    def close(self) -> None:
        """End the thread, and give back what was loaded ahead."""
        if self._chunks is not None:
            self._chunks.close()
        self._chunks = self._rest = None

    def _from(self, low: int) -> Iterator[Chunk]:
        """Chunks from a place on; runs in the thread."""
        lane, plan = self._lane, self._plan
        share = plan.grid.share
        block = share * max(1, int(min(BLOCK, BLOCK_BYTES / self._loader.mean)) // share)  # whole batches: no joining
        holder = Holder(plan, self._loader, columnar=self._columnar)
        try:
            while low < lane.length:
                stretch = lane.stretch(low)
                if stretch.key is None:  # in base order: not more of it is held than is made at once
                    stretch = lane.run(low, min(low + block, stretch.last))
                holder.hold(stretch.ranges, lane.behind(stretch.last))
                while low < stretch.last:
                    stop = min(stretch.last, low + block)
                    yield holder.gather(stretch.order[low - stretch.first : stop - stretch.first])
                    low = stop
        finally:
            holder.close()

    def _weigh(self, chunk: Chunk) -> int:
        beside = RECORD_BYTES if isinstance(chunk.values, list) else 0
        return int(len(chunk) * (self._loader.mean + beside))
