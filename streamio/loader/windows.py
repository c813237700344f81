"""Reads one lane of a streamed plan: blocks are decoded ahead in a thread, here they become windows and are permuted.

Where a window begins and ends follows from the bytes alone, so that a lane can be taken up again at any slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streamio.errors import TooManyDropsError
from streamio.formats.base import PAST_THE_END, Bad, Block, CorruptError, StreamedFormat
from streamio.formats.rows import Records
from streamio.iterators import end
from streamio.loader.ahead import Ahead
from streamio.loader.chunk import Chunk, joined, numbered, pick, taken
from streamio.plan import Cursor, Place, Segment, StreamedSplits, permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.loader.spec import Spec
    from streamio.plan import BegunWindow, StreamedPlan
    from streamio.storage.reader import Reader
    from streamio.storage.shards import Shard

#: Bytes of decoded blocks that wait where nothing is shuffled; where windows are, a quarter of the read-ahead.
AHEAD_BYTES = 8 << 20

#: Splits that are fetched ahead at most, however small they are.
MOST_HINTED = 16

#: What a block counts with at least: small ones are not made ahead without end.
LEAST = 1 << 20


@dataclass
class Piece:
    """Slots of one split that were decoded together.

    Attributes:
        chunk: The slots, in file order.
        turn: The pass.
        at: Place of the split in the lane.
        nbytes: About what each slot takes in memory, int64.
        seek: Where reading can begin with each of them, and with what follows; None where it can't.
    """

    chunk: Chunk
    turn: int
    at: int
    nbytes: NDArray[np.int64]
    seek: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.chunk)

    def place(self, slot: int) -> Place:
        """Where reading goes on with one of its slots; `len(self)` is behind them, whether there is another or not."""
        byte = -1 if self.seek is None else int(self.seek[slot])
        return Place(self.turn, self.at, int(self.chunk.number[0]) + slot, byte)

    def cut(self, low: int, high: int) -> Piece:
        """The slots [low, high)."""
        seek = None if self.seek is None else self.seek[low : high + 1]
        return Piece(self.chunk.cut(low, high), self.turn, self.at, self.nbytes[low:high], seek)


class LaneWindows:
    """Slots of one lane in the order of delivery.

    Args:
        spec: The data set.
        reader: Where bytes come from.
        plan: The epoch's plan.
        row: Row of the lane.
        column: Its column.
        cursor: Where to begin.
    """

    def __init__(self, spec: Spec, reader: Reader, plan: StreamedPlan, row: int, column: int, cursor: Cursor) -> None:
        self._spec = spec
        self._plan = plan
        self._lane = (row, column)
        streams = plan.streams(row, column)
        self._places = cursor.places or (Place(plan.first),) * streams  # where the window begins
        limit = max(2 * LEAST, reader.budget.limit // 4 // streams) if plan.shuffle else AHEAD_BYTES
        self._streams = [
            _Stream(_Reading(spec, reader, plan, self._lane, number, place), place, limit)
            for number, place in enumerate(self._places)
        ]
        #: The pass that the last slots given belong to.
        self.turn = min(place.turn for place in self._places)
        self._window: Chunk | Piece | None = None
        self._given = 0  # slots of the window that have been given
        self._segments: tuple[Segment, ...] = ()
        self._reader = reader
        self._begun = deque(plan.windows(row, column)[cursor.rests :])
        self._rests = cursor.rests
        self._in_rest = False
        self._skipped = 0
        if cursor.offset:
            self._fill()
            self._given += cursor.offset

    def take(self, count: int) -> Chunk | None:
        """The next slots, at least one and `count` at most; None at the end of the lane.

        Raises:
            TooManyDropsError: The stream is endless, and a pass of it had no slot.
        """
        if self._window is None or self._given >= len(self._window):
            self._fill()
        window = self._window
        if window is None:
            return None
        low = self._given
        self._given = min(low + count, len(window))
        chunk = window.chunk if isinstance(window, Piece) else window
        return chunk.cut(low, self._given)

    @property
    def cursor(self) -> Cursor:
        """Behind the last slot given; behind a window's last slot stands what is read next."""
        window = self._window
        if self._in_rest and window is not None and self._given < len(window):
            return Cursor(offset=self._given - self._skipped, rests=self._rests)
        if self._in_rest:
            return Cursor(rests=self._rests + 1)
        places = tuple(stream.place for stream in self._streams)
        if window is None or self._given >= len(window):
            return Cursor(places, rests=self._rests)
        if isinstance(window, Piece):
            return Cursor((window.place(self._given),), rests=self._rests)
        return Cursor(self._places, self._given, places, self._segments, self._rests)

    def stop(self) -> None:
        """Tell the threads to end."""
        for stream in self._streams:
            stream.pieces.stop()

    def close(self) -> None:
        """End the reads in flight."""
        for stream in self._streams:
            stream.pieces.close()
        self._window = None
        self._streams.clear()

    def _fill(self) -> None:
        """Have the next window."""
        self._window, self._given = None, 0
        if self._in_rest:
            self._rests += 1
            self._in_rest = False
        if self._begun:
            self._fill_rest(self._begun.popleft())
            return
        following = [piece for stream in self._streams if (piece := stream.peek()) is not None]
        if not following:
            if self._spec.end == "cycle" and len(self._plan.lane(*self._lane)):
                raise nothing_good(self.turn)
            return
        self.turn = min(piece.turn for piece in following)
        if not self._plan.shuffle:
            (stream,) = self._streams
            self._window = stream.take(len(following[0]))
            return
        self._places = tuple(stream.place for stream in self._streams)
        pieces = [piece for stream in self._streams for piece in self._share(stream)]
        self._segments = _segments(pieces)
        chunk = joined([piece.chunk for piece in pieces])
        order = permutation(len(chunk), *self._plan.window_key(*self._lane, self._places))
        self._window = _permuted(chunk, order)

    def _fill_rest(self, window: BegunWindow) -> None:
        """Have what is left of a window that was begun under another grid."""
        reading = _Reading(self._spec, self._reader, self._plan, self._lane, 0, Place(self._plan.first))
        pieces = Ahead(reading.segments(window.segments), _weight, AHEAD_BYTES, f"{reading.name}-rest")
        try:
            chunk = joined([piece.chunk for piece in pieces])
        finally:
            pieces.close()
        self._window = _permuted(chunk, permutation(len(chunk), *window.key))
        self._given = self._skipped = window.offset
        self._in_rest = True

    def _share(self, stream: _Stream) -> list[Piece]:
        """A stream's share of one window: of one pass, a number of slots, or fewer once they have enough bytes."""
        pieces: list[Piece] = []
        slots, room = -(-self._spec.window // len(self._streams)), self._spec.window_bytes // len(self._streams)
        while slots > 0 and room > 0 and (piece := stream.peek()) is not None and piece.turn == self.turn:
            filled = int(np.searchsorted(np.cumsum(piece.nbytes), room)) + 1
            used = stream.take(min(len(piece), slots, filled))
            pieces.append(used)
            slots -= len(used)
            room -= int(used.nbytes.sum())
        return pieces


class _Stream:
    """The pieces of one stream of a lane, which can be taken in part.

    Args:
        reading: What makes them.
        place: Where it begins.
        limit: Bytes of them that are made ahead.
    """

    def __init__(self, reading: _Reading, place: Place, limit: int) -> None:
        self.pieces = Ahead(reading.pieces(), _weight, limit, reading.name)
        #: Where reading goes on behind what was taken.
        self.place = place
        self._next: Piece | None = None

    def peek(self) -> Piece | None:
        """What is read next; None at the end of the stream."""
        if self._next is None:
            self._next = next(self.pieces, None)
            if self._next is not None:
                self.place = self._next.place(0)
        return self._next

    def take(self, count: int) -> Piece:
        """The first slots of what is read next."""
        piece = self._next
        assert piece is not None
        self.place = piece.place(count)
        self._next = piece.cut(count, len(piece)) if count < len(piece) else None
        return piece.cut(0, count)


class _Reading:
    """What runs in a stream's thread: opens one split after the other, and numbers what comes out of it."""

    def __init__(
        self, spec: Spec, reader: Reader, plan: StreamedPlan, lane: tuple[int, int], number: int, place: Place
    ) -> None:
        assert isinstance(spec.splits, StreamedSplits)
        assert isinstance(spec.format, StreamedFormat)
        self._spec = spec
        self._splits = spec.splits
        self._format = spec.format
        self._reader = reader
        self._plan = plan
        self._stream = (*lane, number)
        self._place = place
        self.name = f"streamio-lane-{lane[0]}-{lane[1]}-{number}"

    def pieces(self) -> Iterator[Piece]:
        """The stream's slots from its place on; an endless one ends where a pass of it had none."""
        place = self._place
        turn, at, skip, byte = place.turn, place.split, place.record, place.byte
        while True:
            entries = self._plan.stream(*self._stream, turn).tolist()
            order = [split for split, _, _ in entries]
            seen = bool(at or skip) or (turn == self._plan.first and self._plan.rest is not None)
            while at < len(order):
                if not skip:
                    _, skip, byte = entries[at]
                for piece in self._split(order, turn, at, skip, byte):
                    seen = True
                    yield piece
                at, skip, byte = at + 1, 0, -1
            if self._spec.end != "cycle" or not seen:
                return
            turn, at = turn + 1, 0

    def segments(self, segments: Sequence[Segment]) -> Iterator[Piece]:
        """The slots of a window, segment by segment."""
        for segment in segments:
            left = segment.count
            with closing(self._split([segment.split], 0, 0, segment.record, segment.byte)) as pieces:
                while left:
                    piece = next(pieces)
                    yield piece.cut(0, min(left, len(piece)))
                    left -= min(left, len(piece))

    def _split(self, order: list[int], turn: int, at: int, skip: int, byte: int) -> Generator[Piece, None, None]:
        """The slots of a split behind the first `skip`; `byte` tells where these end, if it can be gone to."""
        split = order[at]
        start, stop = int(self._splits.start[split]), int(self._splits.stop[split])
        source = self._reader.source(self._spec.shards[int(self._splits.shard[split])])
        sought = skip > 0 and byte >= 0
        self._reader.counters.add(bytes_needed=stop - (byte if sought else start))
        number = skip if sought else 0
        blocks = self._format.blocks(source, start, stop, number, byte if sought else None)
        following: list[tuple[Shard, int, int]] | None = None
        try:
            for block in blocks:
                if following is None:  # not before the split's own first read is answered
                    following = self._ranges(order[at + 1 : at + 1 + MOST_HINTED])
                self._hint(following)
                count = len(block.index)
                if number + count > skip:
                    piece = self._piece(block, split, turn, at, number)
                    yield piece.cut(max(0, skip - number), count)
                number += count
        except CorruptError as error:  # one bad slot stands for the rest
            if number >= skip:
                bad = Bad("corrupt", f"{error}; the rest of the shard is lost", error.position)
                one = np.array([-1], np.int64)
                yield self._piece(Block(Records([None], {0: bad}), one, one + 1), split, turn, at, number)
        finally:
            end(blocks)

    def _piece(self, block: Block, split: int, turn: int, at: int, number: int) -> Piece:
        rows, count = block.rows, len(block.index)
        place = None
        places: slice | NDArray[np.int64] = slice(0, count)
        if rows.bad:
            fine = np.ones(count, bool)
            fine[list(rows.bad)] = False
            places = np.flatnonzero(fine)
            place = numbered(fine)
        values = taken(rows, places, columnar=self._spec.columnar)
        numbers = np.arange(number, number + count, dtype=np.int64)
        chunk = Chunk(values, np.full(count, split, np.int64), numbers, block.index, rows.bad, place)
        return Piece(chunk, turn, at, block.nbytes, block.seek)

    def _ranges(self, splits: list[int]) -> list[tuple[Shard, int, int]]:
        """What reading these splits begins with: shards and ranges."""
        ranges = []
        for split in splits:
            shard = self._spec.shards[int(self._splits.shard[split])]
            # A cut shard is read from the byte before, which tells whether a line begins at the cut, to a bit further.
            start, stop = max(0, int(self._splits.start[split]) - 1), int(self._splits.stop[split]) + PAST_THE_END
            ranges.append((shard, start, min(shard.size, stop)))
        return ranges

    def _hint(self, ranges: list[tuple[Shard, int, int]]) -> None:
        """Let the reader go on fetching what comes next, as far as its budget goes."""
        for shard, start, stop in ranges:
            if not self._reader.hint(shard, start, stop):
                break


def nothing_good(turn: int) -> TooManyDropsError:
    """The error where an endless stream has nothing to give."""
    return TooManyDropsError(
        f"Pass {turn} over the data of one lane had not one good record, so an endless stream has nothing to give. "
        f"`streamio cat` on the shards shows what is wrong with them."
    )


def _segments(pieces: Sequence[Piece]) -> tuple[Segment, ...]:
    """What a window is made of: pieces that follow each other in one split are one segment."""
    found: list[Segment] = []
    for piece in pieces:
        split, record = int(piece.chunk.split[0]), int(piece.chunk.number[0])
        last = found[-1] if found else None
        if last is not None and (last.split, last.record + last.count) == (split, record):
            found[-1] = replace(last, count=last.count + len(piece))
        else:
            found.append(Segment(split, record, len(piece), piece.place(0).byte))
    return tuple(found)


def _weight(piece: Piece) -> int:
    return max(LEAST, int(piece.nbytes.sum()))


def _permuted(chunk: Chunk, order: NDArray[np.int64]) -> Chunk:
    """The slots in another order."""
    split, number, index = chunk.split[order], chunk.number[order], chunk.index[order]
    if chunk.place is None:
        return Chunk(pick(chunk.values, order), split, number, index, {})
    bad = {slot: chunk.bad[at] for slot, at in enumerate(order.tolist()) if at in chunk.bad}
    return Chunk(chunk.values, split, number, index, bad, chunk.place[order])
