"""Makes the batches of a streamed plan: each call gives a lane's next batch, and where the lane stands behind it.

Batches are filled with good records by reading on, so nothing is refilled here; each lane ends with a short batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from streamio.errors import StreamioError, TooManyDropsError
from streamio.formats.base import Bad, CorruptError, Row, StreamedFormat
from streamio.loader.finish import Finisher
from streamio.loader.spec import Made, Start
from streamio.observe.drops import Drop
from streamio.plan import Cursor, StreamedSplits, permutation
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from streamio.loader.spec import Spec
    from streamio.plan import StreamedPlan
    from streamio.storage.reader import Reader

#: Slots that an unshuffled lane reads at once: enough to spread the cost of a call.
BLOCK = 256


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
        (row,) = self._spec.rows
        lane = self._lanes.get(column)
        if lane is None:
            cursor = self._start.cursors[column]
            lane = self._lanes[column] = _Lane(self._spec, self._reader, self._plan, row, column, cursor)
        made = Made()
        share = self._spec.grid.share
        while len(made.values) < share:
            slots = lane.take(share - len(made.values))
            if not slots:
                break
            before = len(made.values)
            self._add(slots, made)
            if len(made.values) > before:
                self._good_turn[column] = slots[-1].turn
            elif slots[-1].turn > self._good_turn.setdefault(column, slots[0].turn) + 1:
                raise _nothing_good(slots[-1].turn)
        made.cursor = lane.cursor
        if len(made.values) < share and self._spec.drop_last:
            made.values = []
        made.ended = not made.values
        if self._plan.shared(row, column):
            made.padded = len(made.values)
        return made

    def close(self) -> None:
        """End what is being read."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    def _add(self, slots: list[_Slot], made: Made) -> None:
        """Put the slots' records into the batch, and drops into its list."""
        for slot in slots:
            value = slot.row.value
            if not (self._finish.idle or isinstance(value, Bad)):
                value = self._finish(value, slot.url, slot.row.index, (slot.split, slot.number))
            if isinstance(value, Bad):
                made.drops.append(Drop(value.reason, shown(slot.url), value.position, value.message))
            else:
                made.values.append(value)


class _Slot(NamedTuple):
    """A slot and its place: pass, place of its split in the lane, number in the split."""

    turn: int
    at: int
    number: int
    split: int
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
        self._limits = (spec.window if plan.shuffle else BLOCK, spec.window_bytes)
        self._reader = reader
        self._plan = plan
        self._lane = (row, column)
        self._order = plan.lane(row, column, cursor.turn).tolist()
        # What is read next: slot `number` of the split at `at` in pass `turn`.
        self._turn, self._at, self._number = cursor.turn, cursor.split, 0
        self._rows: Iterator[Row] | None = None
        self._error: StreamioError | None = None
        self._seen = cursor.turn if cursor.split or cursor.record else -1  # the last pass that had a slot
        self._window: list[_Slot] = []
        self._begin = cursor  # where the window begins
        self._given = 0  # slots of the window that have been given
        while self._number < cursor.record and self._read(min(BLOCK, cursor.record - self._number), None):
            pass
        if cursor.offset:
            self._fill()
            self._given = cursor.offset

    def take(self, count: int) -> list[_Slot]:
        """The next slots, `count` at most; none at the end of the lane."""
        if self._given >= len(self._window):
            self._fill()
        slots = self._window[self._given : self._given + count]
        self._given += len(slots)
        return slots

    @property
    def cursor(self) -> Cursor:
        """Behind the last slot given; behind a window's last slot stands what is read next."""
        if self._given >= len(self._window):
            return Cursor(self._turn, self._at, self._number)
        if self._plan.shuffle:
            return Cursor(self._begin.turn, self._begin.split, self._begin.record, self._given)
        following = self._window[self._given]
        return Cursor(following.turn, following.at, following.number)

    def close(self) -> None:
        """End the read in flight."""
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()
        self._rows = None

    def _fill(self) -> None:
        """Read the next window and permute it."""
        window = self._read(*self._limits)
        self._window, self._given = window, 0
        if window and self._plan.shuffle:
            first = window[0]
            self._begin = Cursor(first.turn, first.at, first.number)
            key = self._plan.window_key(*self._lane, self._begin)
            self._window = [window[place] for place in permutation(len(window), *key).tolist()]

    def _read(self, most: int, most_bytes: int | None) -> list[_Slot]:
        """Read slots in the order of the splits: `most` of them, or fewer once they have `most_bytes`.

        An unshuffled lane stops at the end of a split: it waits for the next one when that is wanted.
        """
        if self._error is not None:
            raise self._error
        slots: list[_Slot] = []
        nbytes = 0
        while len(slots) < most and (most_bytes is None or nbytes < most_bytes):
            if slots and self._rows is None and not self._plan.shuffle:
                break
            if not self._open():
                break
            rows, turn, at, number = self._rows, self._turn, self._at, self._number
            assert rows is not None
            split = self._order[at]
            url = self._shards[int(self._splits.shard[split])].url
            try:
                for row in rows:
                    if number == 0:  # not before the split's own first read has been answered
                        self._hint_next()
                    slots.append(_Slot(turn, at, number, split, url, row))
                    number += 1
                    nbytes += row.nbytes
                    if len(slots) >= most or (most_bytes is not None and nbytes >= most_bytes):
                        self._number = number
                        break
                else:
                    self._rows, self._at, self._number = None, at + 1, 0
            except CorruptError as error:  # one bad slot stands for the rest
                bad = Bad("corrupt", f"{error}; the rest of the shard is lost", error.position)
                slots.append(_Slot(turn, at, number, split, url, Row(-1, 0, bad)))
                number += 1
                self._rows, self._number = iter(()), number
            except StreamioError as error:
                self._error = error  # for good: what comes behind it must not pass for the next slot
                if not slots or self._plan.shuffle:
                    raise
                self._number = number  # what was read before goes out first; whoever asks on is told
                break
            if number:
                self._seen = turn
        return slots

    def _open(self) -> bool:
        """Have a split to read from; False at the end of the lane."""
        if self._rows is not None:
            return True
        if self._at >= len(self._order):
            if not self._cycle or not self._order:
                return False
            if self._seen != self._turn:
                raise _nothing_good(self._turn)
            self._turn, self._at, self._number = self._turn + 1, 0, 0
            self._order = self._plan.lane(*self._lane, self._turn).tolist()
        split = self._order[self._at]
        source = self._reader.source(self._shards[int(self._splits.shard[split])])
        self._rows = iter(self._format.rows(source, int(self._splits.start[split]), int(self._splits.stop[split])))
        return True

    def _hint_next(self) -> None:
        """Let the reader fetch the beginning of the split that comes next."""
        if self._at + 1 < len(self._order):
            split = self._order[self._at + 1]
            shard = self._shards[int(self._splits.shard[split])]
            # A cut shard is read from the byte before, which tells whether a line begins at the cut.
            start = max(0, int(self._splits.start[split]) - 1)
            self._reader.hint(shard, start, int(self._splits.stop[split]))


def _nothing_good(turn: int) -> TooManyDropsError:
    return TooManyDropsError(
        f"Pass {turn} over the data of one lane had not one good record, so an endless stream has nothing to give. "
        f"`streamio cat` on the shards shows what is wrong with them."
    )
