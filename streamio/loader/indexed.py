"""Makes the batches of an indexed plan: global batch k in, this rank's share of it out, a function of k alone.

Also where a slot's record can't be used: what stands in for it is found by the plan's order, never by rank or worker.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING

import numpy as np

from streamio.errors import TooManyDropsError
from streamio.formats.base import Bad
from streamio.loader.chunk import Chunk, Values, join, joined, pick
from streamio.loader.finish import Finisher
from streamio.loader.lanes import BLOCK, BLOCK_BYTES, Holder, LaneReader
from streamio.loader.spec import Made, Start
from streamio.loader.splits import SplitLoader
from streamio.loader.steering import left_out, why
from streamio.loader.threads import Threads
from streamio.observe.drops import Drop
from streamio.plan import runs
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from streamio.loader.spec import Spec
    from streamio.plan import Stretch
    from streamio.storage.reader import Reader


logger = logging.getLogger(__name__)

#: Records without a good one among them after which a run ends that has no `max_drops` as a count.
MOST_LOST = 1_000_000

#: After how many a warning says that the search goes on.
TOLD = 10_000


class IndexedMaker:
    """Makes batches; keeps a reader for each lane that it has been asked for.

    Args:
        spec: The data set.
        reader: Where bytes come from.
        threads: Where splits are decoded, and where heavy ones are.
        start: The epoch; batches may be asked for in any order, rising k is fastest.
        map_threads: Where the user's map runs; None for the calling thread.
    """

    def __init__(
        self,
        spec: Spec,
        reader: Reader,
        threads: tuple[Threads, Threads],
        start: Start,
        map_threads: Threads | None = None,
    ) -> None:
        self._spec = spec = spec.at(start)
        self._start = start
        self._finish = Finisher(spec, start.epoch, map_threads)
        self._threads = threads
        self._loader = SplitLoader(spec, reader, threads)
        self._loader.bad.update(dict.fromkeys(left_out(spec, start.left_out).tolist(), why()))
        self._passes = spec.steps(start), spec.steps(start, 1)
        self._plan = spec.indexed_plan(start)
        self._lanes: dict[tuple[int, int], LaneReader] = {}
        self._probe: Holder | None = None
        self._lost = 0  # records in a row that were looked at and are not good

    def make(self, k: int) -> Made:
        """This rank's share of global batch k.

        Raises:
            TooManyDropsError: The batch must not be empty, and the epoch has not one good record.
        """
        if self._spec.end == "cycle":
            turn, k = turn_of(k, *self._passes)
            if self._start.turn + turn != self._plan.turn:
                self._close_lanes()
                self._plan = self._spec.indexed_plan(self._start, turn)
        made = Made()
        drops: Counter[tuple[str, Bad]] = Counter()
        made.values = join([self._make_row(row, k, made, drops) for row in self._spec.rows])
        made.drops = [Drop(bad.reason, shown(url), bad.position, bad.message, n) for (url, bad), n in drops.items()]
        return made

    def slots(self, row: int, column: int, low: int, high: int) -> Chunk:
        """The finished slots at places [low, high) of a lane of the pass that the iteration begins in."""
        return self._finish(self._lane(row, column).read(low, high))

    def leave(self, row: int, column: int) -> bool:
        """Let go of a lane; tells whether another one is still held."""
        self._lanes.pop((row, column)).close()
        if not self._lanes:
            self._close_lanes()
        return bool(self._lanes)

    def close(self) -> None:
        """End what is being loaded."""
        for reader in self._lanes.values():
            reader.stop()
        for threads in self._threads:
            threads.cancel()  # what a lane waits for ends with it
        self._close_lanes()

    def _make_row(self, row: int, k: int, made: Made, drops: Counter[tuple[str, Bad]]) -> Values:
        plan, spec = self._plan, self._spec
        short = k == plan.full
        slots = self._finish(self._read_tail(row) if short else self._read_lane(row, k))
        for split, bad, count in slots.losses():
            drops[spec.url(split), bad] += count
        even = spec.end != "exact"
        wanted = len(slots)
        if even and short:  # every row as long as the longest
            wanted = -(-(plan.left - plan.full * plan.grid.batch) // plan.grid.rows)
        good, lost = slots.good(), slots.lost
        if spec.on_drop == "refill":
            missing = wanted - len(slots)
        else:  # shorter by what was lost, but not empty where ranks keep step
            missing = max(wanted - lost, 1) - len(good) if even else 0
            lost = 1 if missing > 0 and not len(good) and len(slots) else 0
            missing -= lost
        if not lost and missing <= 0:
            return good
        made.refilled += lost
        made.padded += missing
        return self._filled(row, k, slots if lost and spec.on_drop == "refill" else None, good, lost + missing)

    def _filled(self, row: int, k: int, slots: Chunk | None, good: Values, missing: int) -> Values:
        """A row's good records with others in place of the missing ones: its own in turn, else the next in the plan.

        Args:
            row: The row.
            k: The batch.
            slots: Where the dropped ones among them lie; None to put all stand-ins behind the good ones.
            good: The good records.
            missing: How many stand-ins are wanted.
        """
        count = len(good)
        if not count:
            good = self.next_good(row, k)
        stand_ins = list(islice(cycle(range(len(good))), missing))
        places: list[tuple[int, bool]] = []
        own = iter(range(count))
        lost = iter(stand_ins)
        if slots is not None and slots.place is not None:
            places = [(next(own), False) if place >= 0 else (next(lost), True) for place in slots.place.tolist()]
        places += [(place, False) for place in own]
        places += [(place, True) for place in lost]
        if not isinstance(good, list):
            return pick(good, np.array([place for place, _ in places], np.int64))
        # Copies, so that what a training loop changes in one place does not change in another.
        return [
            dict(good[place]) if again and isinstance(good[place], dict) else good[place] for place, again in places
        ]

    def next_good(self, row: int, k: int) -> Values:
        """The first good record behind batch k of its lane, cyclically; else of the next lanes.

        Else of the short batch.
        """
        grid, plan = self._plan.grid, self._plan
        column, _, place = plan.places(k)
        lanes = grid.rows * grid.columns
        self._lost = 0
        number = row * grid.columns + column
        if self._probe is None:  # kept, for the next batch without a good record is likely to be near
            self._probe = Holder(plan, self._loader, columnar=self._spec.columnar)
        for step in range(lanes):
            lane = plan.lane(*divmod((number + step) % lanes, grid.columns))
            low = min(place, lane.length) if step == 0 else 0
            behind = ((stretch, max(0, low - stretch.first)) for stretch in lane.stretches(low))
            before = ((stretch, 0) for stretch in lane.stretches(0, low))
            for stretch, skipped in chain(behind, before):
                value = self._first_good(self._probe, stretch, skipped)
                if value is not None:
                    return value
        for other in range(grid.rows):
            for stretch in plan.tail((row + other) % grid.rows):
                value = self._first_good(self._probe, stretch)
                if value is not None:
                    return value
        if plan.past:  # what is left has none: the pass as a whole, which was dealt to other grids before
            for stretch in plan.whole.stretches():
                value = self._first_good(self._probe, stretch)
                if value is not None:
                    return value
        raise TooManyDropsError(
            f"Epoch {self._start.epoch} has not one good record in {plan.left} slots, so there is nothing to make a "
            f"batch of.{self._first_lost(row, k)} `streamio cat` on the shards shows what they hold."
        )

    def _first_lost(self, row: int, k: int) -> str:
        """What became of a batch's first record, for an error."""
        slots = self._finish(self._read_tail(row) if k == self._plan.full else self._read_lane(row, k))
        for split, bad, _ in slots.losses():
            where = f" at {bad.position}" if bad.position else ""
            return f" The first: {shown(self._spec.url(split))}{where}: {bad.reason}: {bad.message or 'left out'}."
        return ""

    def _first_good(self, holder: Holder, stretch: Stretch, low: int = 0) -> Values | None:
        """The first slot of a stretch, from a place in it on, whose record is good, finished; None where none is."""
        slots = stretch.order[low:]
        splits, _ = self._plan.locate(slots)
        most = max(1, min(BLOCK, int(BLOCK_BYTES / self._loader.mean)))
        size = 1  # more at once where the first ones are not good: a filter may leave out nearly all
        while len(slots):
            keep = ~np.isin(splits, np.array(list(self._loader.bad), dtype=np.int64))
            slots, splits = slots[keep], splits[keep]
            if not len(slots):
                break
            block, slots, splits = slots[:size], slots[size:], splits[size:]
            holder.hold(stretch.ranges if stretch.key is not None else runs(block))  # a window is held as a whole
            chunk = holder.gather(block)
            for place in chunk.good_slots():
                done = self._finish(chunk.cut(place, place + 1))
                if len(value := done.good()):
                    return value
                self._note_lost(done.bad)
            self._note_lost(chunk.bad)
            size = min(4 * size, most)
        return None

    def _note_lost(self, bad: Mapping[int, Bad]) -> None:
        """Count records that are no good one; what filters leave out is none of them.

        Raises:
            TooManyDropsError: There are more in a row than a run bears.
        """
        before, self._lost = self._lost, self._lost + len(bad)
        most = self._spec.most_drops
        if self._lost > (MOST_LOST if most is None else most):
            bears = "" if most is None else f" (max_drops={most} bears no more)"
            one = next(iter(bad.values()))
            raise TooManyDropsError(
                f"Epoch {self._start.epoch}: not one good record among the next {self._lost}{bears}, and a batch must "
                f"not be empty. One of them: {one.reason}: {one.message}. `streamio cat` on the shards shows what they "
                "hold; a map= that drops them all is another reason."
            )
        if before < TOLD <= self._lost:
            logger.warning("There was no good record among the next %d; looking on for one.", self._lost)

    def _read_lane(self, row: int, k: int) -> Chunk:
        column, low, high = self._plan.places(k)
        return self._lane(row, column).read(low, high)

    def _lane(self, row: int, column: int) -> LaneReader:
        reader = self._lanes.get((row, column))
        if reader is None:
            lane = self._plan.lane(row, column)
            spec = self._spec
            reader = LaneReader(self._plan, lane, self._loader, columnar=spec.columnar, records=spec.records)
            self._lanes[row, column] = reader
        return reader

    def _read_tail(self, row: int) -> Chunk:
        none = np.empty(0, np.int64)
        holder = Holder(self._plan, self._loader, columnar=self._spec.columnar)
        chunks = []
        try:
            for stretch in self._plan.tail(row):
                holder.hold(stretch.ranges)
                chunks.append(holder.gather(stretch.order))
        finally:
            holder.close()
        return joined(chunks) if chunks else Chunk([], none, none, none, {})

    def _close_lanes(self) -> None:
        for reader in self._lanes.values():
            reader.close()
        self._lanes.clear()
        if self._probe is not None:
            self._probe.close()
            self._probe = None


def turn_of(k: int, first: int, each: int) -> tuple[int, int]:
    """The pass of an endless stream that global batch k lies in, and its number there.

    Args:
        k: The batch.
        first: Batches of the first pass.
        each: Batches of every later one.
    """
    if k < first:
        return 0, k
    turn, k = divmod(k - first, each)
    return turn + 1, k
