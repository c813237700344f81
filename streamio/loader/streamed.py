"""Makes the batches of a streamed plan: each call gives a lane's next batch, and where the lane stands behind it.

Batches are filled with good records by reading on, so nothing is refilled here; each lane ends with a short batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamio.loader.chunk import Values, join
from streamio.loader.finish import Finisher
from streamio.loader.spec import Made, Start
from streamio.loader.windows import LaneWindows, nothing_good
from streamio.observe.drops import Drop
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from streamio.loader.chunk import Chunk
    from streamio.loader.spec import Spec
    from streamio.loader.threads import Threads
    from streamio.storage.reader import Reader


#: Drops that are told before the first good record of a batch is found.
TOLD = 1000


class StreamedMaker:
    """Makes batches, a lane for each column that it is asked for.

    Args:
        spec: The data set.
        reader: Where bytes come from.
        start: The epoch and where its lanes stand.
        map_threads: Where the user's map runs; None for the calling thread.
    """

    def __init__(self, spec: Spec, reader: Reader, start: Start, map_threads: Threads | None = None) -> None:
        self._spec = spec = spec.at(start)
        self._reader = reader
        self._start = start
        self._plan = spec.streamed_plan(start)
        self._finish = Finisher(spec, start.epoch, map_threads)
        self._lanes: dict[int, LaneWindows] = {}
        self._good_turn: dict[int, int] = {}

    def make(self, column: int) -> Made:
        """The next batch of this rank's lane in a column; `ended` where there is none, `more` where it is far to it."""
        (row,) = self._spec.rows
        lane = self._lanes.get(column)
        if lane is None:
            cursor = self._start.cursors[column]
            lane = self._lanes[column] = LaneWindows(self._spec, self._reader, self._plan, row, column, cursor)
        made = Made()
        parts: list[Values] = []
        share, count = self._spec.grid.share, 0
        while count < share:
            slots = lane.take(share - count)
            if slots is None:
                break
            parts.append(self._good(slots, made))
            count += len(parts[-1])
            if len(parts[-1]):
                self._good_turn[column] = lane.turn
            elif lane.turn > self._good_turn.setdefault(column, lane.turn) + 1:
                raise nothing_good(lane.turn)
            if not count and len(made.drops) >= TOLD:
                made.cursor, made.more = lane.cursor, True
                return made
        made.values = join(parts) if parts else []
        made.cursor = lane.cursor
        if count < share and self._spec.drop_last:
            made.values = []
        made.ended = not len(made.values)
        if self._plan.shared(row, column):
            made.padded = len(made.values)
        return made

    def close(self) -> None:
        """End what is being read."""
        for lane in self._lanes.values():
            lane.stop()
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    def _good(self, slots: Chunk, made: Made) -> Values:
        """The slots' records, finished; drops go into the batch's list."""
        done = self._finish(slots)
        for place in sorted(done.bad):
            bad, url = done.bad[place], self._spec.url(int(done.split[place]))
            made.drops.append(Drop(bad.reason, shown(url), bad.position, bad.message))
        return done.good()
