"""Makes the batches of a streamed plan: each call gives a lane's next batch, and where the lane stands behind it.

Batches are filled with good records by reading on, so nothing is refilled here; each lane ends with its own
short batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamio.errors import TooManyDropsError
from streamio.formats.base import Bad, CorruptError, Row, StreamedFormat
from streamio.loader.finish import Finisher
from streamio.loader.spec import Made, Start
from streamio.observe.drops import Drop
from streamio.plan import Cursor, StreamedSplits, permutation
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamio.loader.spec import Spec
    from streamio.plan import StreamedPlan
    from streamio.storage.reader import Reader
    from streamio.storage.shards import Shard


class StreamedMaker:
    """Makes batches, a lane for each column that it is asked for.

    Args:
        spec: The data set.
        reader: Where bytes come from.
        start: The epoch and where its lanes stand.
    """

    def __init__(self, spec: Spec, reader: Reader, start: Start) -> None:
        self._spec = spec
        self._reader = reader
        self._start = start
        self._plan = spec.streamed_plan(start.epoch)
        self._finish = Finisher(spec, start.epoch)
        self._lanes: dict[int, _Lane] = {}
        self._good_turn: dict[int, int] = {}

    def make(self, column: int) -> Made:
        """The next batch of this rank's lane in a column; `ended` where there is none."""
        lane = self._lanes.get(column)
        if lane is None:
            (row,) = self._spec.rows
            cursor = self._start.cursors[column]
            lane = self._lanes[column] = _Lane(self._spec, self._reader, self._plan, row, column, cursor)
        made = Made()
        share = self._spec.grid.share
        while len(made.values) < share:
            slot = lane.next()
            if slot is None:
                break
            if self._take(slot, made):
                self._good_turn[column] = slot.turn
            elif slot.turn > self._good_turn.setdefault(column, slot.turn) + 1:
                raise _nothing_good(slot.turn)
        made.cursor = lane.cursor
        if len(made.values) < share and self._spec.drop_last:
            made.values = []
        made.ended = not made.values
        if self._plan.shared(self._spec.rows[0], column):
            made.padded = len(made.values)
        return made

    def close(self) -> None:
        """End what is being read."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    def _take(self, slot: _Slot, made: Made) -> bool:
        """Put a slot's record into the batch, or its drop into the list; tells whether it was good."""
        value: Any = slot.row.value
        if not isinstance(value, Bad):
            value = self._finish(value, slot.url, slot.row.index, (slot.split, slot.number))
        if isinstance(value, Bad):
            made.drops.append(Drop(value.reason, shown(slot.url), value.position, value.message))
            return False
        made.values.append(value)
        return True


def _nothing_good(turn: int) -> TooManyDropsError:
    return TooManyDropsError(
        f"Pass {turn} over the data of one lane had not one good record, so an endless stream has nothing to give. "
        f"`streamio cat` on the shards shows what is wrong with them."
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    turn: int
    split: int
    number: int
    url: str
    row: Row


class _Lane:
    """Slots of one lane in the order of delivery, a window at a time."""

    def __init__(self, spec: Spec, reader: Reader, plan: StreamedPlan, row: int, column: int, cursor: Cursor) -> None:
        assert isinstance(spec.splits, StreamedSplits)
        assert isinstance(spec.format, StreamedFormat)
        self._splits = spec.splits
        self._shards = spec.shards
        self._format = spec.format
        self._cycle = spec.end == "cycle"
        self._limits = (spec.window, spec.window_bytes) if plan.shuffle else (1, 1)
        self._reader = reader
        self._plan = plan
        self._order_of: Callable[[int], Any] = lambda turn: plan.lane(row, column, turn)
        self._key_of: Callable[[Cursor], tuple[int | str, ...]] = lambda at: plan.window_key(row, column, at)
        self._rows: Iterator[Row] | None = None
        self._at = Cursor(cursor.turn, cursor.split, cursor.record)  # the next slot to be read
        self._order = self._order_of(cursor.turn)
        self._window: list[_Slot] = []
        self._last = (0, 0)  # split and number of the slot read last
        self._seen_turn = cursor.turn if cursor.split or cursor.record else -1  # the last pass that had a slot
        self.cursor = cursor
        self._seek(cursor)

    def next(self) -> _Slot | None:
        """The next slot, None at the end of the lane."""
        if self.cursor.offset >= len(self._window):
            self._fill()
            if not self._window:
                return None
        slot = self._window[self.cursor.offset]
        offset = self.cursor.offset + 1
        # Behind the last slot of a window stands the next window's first: a resume must not read this one again.
        self.cursor = replace(self.cursor, offset=offset) if offset < len(self._window) else self._at
        if offset == len(self._window):
            self._window = []
        return slot

    def close(self) -> None:
        """End the read in flight."""
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()
        self._rows = None

    def _seek(self, cursor: Cursor) -> None:
        """Take up a lane in the middle: read to where its window begins, and fill the window if it has been begun."""
        skip, self._at = self._at.record, replace(self._at, record=0)
        for _ in range(skip):
            self._read()
        if cursor.offset:
            self._fill()
            self.cursor = replace(self.cursor, offset=cursor.offset)

    def _fill(self) -> None:
        """Read the next window and permute it."""
        most, most_bytes = self._limits
        window: list[_Slot] = []
        nbytes, begin = 0, self._at
        while len(window) < most and (not window or nbytes < most_bytes):
            slot = self._read()
            if slot is None:
                break
            if not window:
                begin = replace(begin, turn=self._at.turn, split=self._last[0], record=self._last[1])
            window.append(slot)
            nbytes += slot.row.nbytes
        if self._plan.shuffle:
            window = [window[i] for i in permutation(len(window), *self._key_of(begin)).tolist()]
        self._window, self.cursor = window, begin

    def _read(self) -> _Slot | None:
        """Read the next slot in the order of the splits, over their ends; None where no split is left."""
        while True:
            if self._at.split >= len(self._order):
                if not self._cycle or not len(self._order):
                    return None
                if self._seen_turn != self._at.turn:
                    raise _nothing_good(self._at.turn)
                self._at = Cursor(turn=self._at.turn + 1)
                self._order = self._order_of(self._at.turn)
            split = int(self._order[self._at.split])
            shard = self._shards[int(self._splits.shard[split])]
            row = self._next_row(split, shard)
            if row is None:
                self._rows = None
                self._at = Cursor(self._at.turn, self._at.split + 1)
                continue
            number = self._at.record
            self._seen_turn = self._at.turn
            self._last = (self._at.split, number)
            self._at = replace(self._at, record=number + 1)
            return _Slot(self._at.turn, split, number, shard.url, row)

    def _next_row(self, split: int, shard: Shard) -> Row | None:
        """The next slot of a split; where it can't be decoded any further, one bad slot stands for the rest."""
        if self._rows is None:
            start, stop = int(self._splits.start[split]), int(self._splits.stop[split])
            self._rows = self._format.rows(self._reader.source(shard), start, stop)
        try:
            row = next(self._rows, None)
        except CorruptError as error:
            self._rows = iter(())
            row = Row(-1, 0, Bad("corrupt", f"{error}; the rest of the shard is lost", error.position))
        if self._at.record == 0:  # not before the split's own first read has been sent
            self._hint_next()
        return row

    def _hint_next(self) -> None:
        """Let the reader fetch the beginning of the split that comes next."""
        if self._at.split + 1 < len(self._order):
            split = int(self._order[self._at.split + 1])
            shard = self._shards[int(self._splits.shard[split])]
            self._reader.hint(shard, int(self._splits.start[split]), int(self._splits.stop[split]))
