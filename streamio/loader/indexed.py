"""Makes the batches of an indexed plan: global batch k in, this rank's share of it out, a function of k alone.

Also where a slot's record can't be used: what stands in for it is found by the plan's order, never by rank or worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.errors import TooManyDropsError
from streamio.formats.base import Bad
from streamio.loader.finish import Finisher
from streamio.loader.lanes import LaneReader, Slot, SplitLoader
from streamio.loader.spec import Made, Start
from streamio.loader.threads import Threads
from streamio.observe.drops import Drop
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.loader.spec import Spec
    from streamio.storage.reader import Reader

#: Threads of one process that read and decode splits; more than the decoder can use only holds memory.
LOAD_THREADS = 4


class IndexedMaker:
    """Makes batches; keeps a reader for each lane that it has been asked for.

    Args:
        spec: The data set.
        reader: Where bytes come from.
        start: The epoch; batches may be asked for in any order, rising k is fastest.
    """

    def __init__(self, spec: Spec, reader: Reader, start: Start) -> None:
        self._spec = spec
        self._epoch = start.epoch
        self._finish = Finisher(spec, start.epoch)
        self._threads = Threads(LOAD_THREADS, "streamio-load")
        self._loader = SplitLoader(spec, reader, self._threads)
        self._steps = spec.steps(start.epoch)
        self._plan = spec.indexed_plan(start.epoch)
        self._lanes: dict[tuple[int, int], LaneReader] = {}

    def make(self, k: int) -> Made:
        """This rank's share of global batch k.

        Raises:
            TooManyDropsError: The batch must not be empty, and the epoch has not one good record.
        """
        if self._spec.end == "cycle":
            turn, k = divmod(k, self._steps)
            if turn != self._plan.turn:
                self._close_lanes()
                self._plan = self._spec.indexed_plan(self._epoch, turn)
        made = Made()
        drops: Counter[tuple[str, Bad]] = Counter()
        for row in self._spec.rows:
            self._make_row(row, k, made, drops)
        made.drops = [Drop(bad.reason, shown(url), bad.position, bad.message, n) for (url, bad), n in drops.items()]
        return made

    def close(self) -> None:
        """End what is being loaded."""
        self._close_lanes()
        self._threads.close()

    def _make_row(self, row: int, k: int, made: Made, drops: Counter[tuple[str, Bad]]) -> None:
        plan, spec = self._plan, self._spec
        short = k == plan.full
        slots = self._read_tail(row) if short else self._read_lane(row, k)
        good: list[Any] = []
        lost: list[int] = []
        values: list[Any] = [None] * len(slots)
        for place, slot in enumerate(slots):
            value = self._finished(slot)
            if isinstance(value, Bad):
                drops[self._loader.url(slot[0]), value] += 1
                lost.append(place)
            else:
                values[place] = value
                good.append(value)

        even = spec.end != "exact"
        wanted = len(slots)
        if even and short:  # every row as long as the longest
            wanted = -(-(plan.slots - plan.full * plan.grid.batch) // plan.grid.rows)
        if spec.on_drop == "short":
            values = good
            keep = len(good) + wanted - len(slots) if even else len(good)
            wanted = max(keep, 1) if even else keep
        stand_ins = (
            self._stand_ins(row, k, good) if (lost and spec.on_drop == "refill") or len(values) < wanted else None
        )
        if stand_ins is not None:
            if spec.on_drop == "refill":
                for place in lost:
                    values[place] = next(stand_ins)
                made.refilled += len(lost)
            elif not values and slots:
                values = [next(stand_ins)]
                made.refilled += 1
            while len(values) < wanted:
                values.append(next(stand_ins))
                made.padded += 1
        made.values += values

    def _stand_ins(self, row: int, k: int, good: list[Any]) -> Iterator[Any]:
        """Good records to repeat: the row's own of this batch in turn, else the next one in the plan's order."""
        if not good:
            good = [self._next_good(row, k)]
        while True:  # copies, so that what a training loop changes in one place does not change in another
            yield from (dict(value) if isinstance(value, dict) else value for value in good)

    def _next_good(self, row: int, k: int) -> Any:
        """The first good record behind batch k of its lane, cyclically; else of the next lanes.

        Else of the short batch.
        """
        grid, plan = self._plan.grid, self._plan
        column, _, place = plan.places(k)
        lanes = grid.rows * grid.columns
        number = row * grid.columns + column
        for step in range(lanes + 1):  # its own lane a second time: what lies before the batch
            lane = plan.lane(*divmod((number + step) % lanes, grid.columns))
            reader = LaneReader(plan, lane, self._loader, ahead=False)
            low = min(place, lane.length) if step == 0 else 0
            for window in range(lane.window_at(low), lane.window_at(max(0, lane.length - 1)) + 1):
                first, _ = lane.span(window)
                value = self._first_good(reader, lane.order(window)[max(0, low - first) :])
                if value is not None:
                    return value
            if step == 0 and low > 0:
                value = self._first_good(
                    reader, np.concatenate([lane.order(w) for w in range(lane.window_at(low - 1) + 1)])
                )
                if value is not None:
                    return value
        for other in range(grid.rows):
            tail = plan.tail((row + other) % grid.rows)
            value = self._first_good(LaneReader(plan, plan.lane(row, column), self._loader, ahead=False), tail)
            if value is not None:
                return value
        raise TooManyDropsError(
            f"Epoch {self._epoch} has not one good record in {plan.slots} slots, so there is nothing to make a "
            "batch of. "
            f"`streamio cat` on the shards shows what is wrong with them."
        )

    def _first_good(self, reader: LaneReader, slots: NDArray[np.int64]) -> Any:
        """The first of these slots whose record is good, finished; None where none is."""
        splits, _ = self._plan.locate(slots)
        while len(slots):
            bad = np.array(list(self._loader.bad), dtype=np.int64)
            keep = ~np.isin(splits, bad)
            slots, splits = slots[keep], splits[keep]
            if not len(slots):
                break
            slot = int(slots[0])
            reader.hold(slot, slot + 1)
            value = self._finished(reader.values(slots[:1])[0])
            if not isinstance(value, Bad):
                return value
            slots, splits = slots[1:], splits[1:]
        return None

    def _finished(self, slot: Slot) -> Any:
        split, number, value = slot
        if isinstance(value, Bad):
            return value
        return self._finish(
            value, self._loader.url(split), int(self._loader.splits.first[split]) + number, (split, number)
        )

    def _read_lane(self, row: int, k: int) -> list[Slot]:
        column, low, high = self._plan.places(k)
        reader = self._lanes.get((row, column))
        if reader is None:
            reader = self._lanes[row, column] = LaneReader(self._plan, self._plan.lane(row, column), self._loader)
        return reader.read(low, high)

    def _read_tail(self, row: int) -> list[Slot]:
        tail = self._plan.tail(row)
        if not len(tail):
            return []
        reader = LaneReader(self._plan, self._plan.lane(row, 0), self._loader, ahead=False)
        reader.hold(int(tail[0]), int(tail[-1]) + 1)
        return reader.values(tail)

    def _close_lanes(self) -> None:
        for reader in self._lanes.values():
            reader.close()
        self._lanes.clear()
