"""Reads one lane of a streamed plan: what its streams found becomes windows here, which are permuted.

Where a window begins and ends follows from the bytes alone, so that a lane can be taken up again at any slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from streamio.errors import TooManyDropsError
from streamio.loader.ahead import Ahead
from streamio.loader.chunk import Chunk, joined, pick
from streamio.loader.reading import LEAST, Found, Making, Parser, Piece, Reading, parser
from streamio.plan import Cursor, Place, Segment, permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.loader.spec import Spec
    from streamio.plan import BegunWindow, StreamedPlan
    from streamio.storage.reader import Reader

#: Bytes of blocks that wait where nothing is shuffled; where windows are, a quarter of the read-ahead, half for texts.
AHEAD_BYTES = 8 << 20


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
        self._parse = parser(spec, plan)
        share = 2 if self._parse else 4  # blocks of text count with about twice their bytes, as `LEAST` does
        limit = max(2 * LEAST, reader.budget.limit // share // streams) if plan.shuffle else AHEAD_BYTES
        self._streams = [
            _Stream(Reading(spec, reader, plan, self._lane, number, place), place, limit)
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
        chunk = (window.chunk if isinstance(window, Piece) else window).cut(low, self._given)
        return chunk if self._parse is None else _parsed(chunk, self._parse)

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
        self._window = self._permuted(chunk, order)

    def _fill_rest(self, window: BegunWindow) -> None:
        """Have what is left of a window that was begun under another grid."""
        reading = Reading(self._spec, self._reader, self._plan, self._lane, 0, Place(self._plan.first))
        pieces = Ahead(reading.segments(window.segments), attrgetter("weight"), AHEAD_BYTES, f"{reading.name}-rest")
        try:
            chunk = joined([piece.chunk for piece in pieces])
        finally:
            pieces.close()
        self._window = self._permuted(chunk, permutation(len(chunk), *window.key))
        self._given = self._skipped = window.offset
        self._in_rest = True

    def _permuted(self, chunk: Chunk, order: NDArray[np.int64]) -> Chunk:
        """The slots in another order; texts stay where they are until their records are wanted."""
        split, number, index = chunk.split[order], chunk.number[order], chunk.index[order]
        if chunk.place is None and self._parse is None:
            return Chunk(pick(chunk.values, order), split, number, index, {})
        bad = {slot: chunk.bad[at] for slot, at in enumerate(order.tolist()) if at in chunk.bad} if chunk.bad else {}
        place = order if chunk.place is None else chunk.place[order]
        return Chunk(chunk.values, split, number, index, bad, place)

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

    They are decoded here, in the thread of their consumer, or ahead where that one is slower than what reads them.

    Args:
        reading: What makes them.
        place: Where it begins.
        limit: Bytes of them that are made ahead.
    """

    def __init__(self, reading: Reading, place: Place, limit: int) -> None:
        self.pieces = Ahead(reading.found(), attrgetter("weight"), limit, reading.name, Found.ready)
        #: Where reading goes on behind what was taken.
        self.place = place
        self._next: Piece | None = None
        self._make = Making(columnar=reading.columnar)

    def peek(self) -> Piece | None:
        """What is read next; None at the end of the stream."""
        while self._next is None:
            found = next(self.pieces, None)
            if found is None:
                return None
            self._next = self._make(found)
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


def _parsed(chunk: Chunk, parse: Parser) -> Chunk:
    """The slots with records in place of their texts."""
    slots, texts = chunk.good_slots(), chunk.good()
    if isinstance(texts, list):  # none is good
        return chunk
    rows = parse(texts.column(0), chunk.index[slots])
    if len(rows) == len(chunk) and not rows.bad:
        return replace(chunk, values=rows.take(slice(0, len(rows))), place=None)
    fine = [place for place in range(len(rows)) if place not in rows.bad]
    place = np.full(len(chunk), -1, np.int64)
    place[[slots[one] for one in fine]] = np.arange(len(fine))
    bad = {**chunk.bad, **{slots[one]: why for one, why in rows.bad.items()}}
    return replace(chunk, values=rows.take(np.array(fine, np.int64)), bad=bad, place=place)
