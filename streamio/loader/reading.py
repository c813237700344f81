"""Reads the splits of one stream of a lane, in a thread, and makes numbered pieces of them where these are used.

Which stream reads what is the plan's business, what windows are made of pieces is that of `windows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streamio.formats.base import (
    PAST_THE_END,
    Bad,
    Block,
    CorruptError,
    Deferred,
    DeferringFormat,
    ParsingFormat,
    Rows,
    StreamedFormat,
)
from streamio.formats.rows import Records
from streamio.iterators import end
from streamio.loader.chunk import Chunk, numbered, taken
from streamio.plan import Place, StreamedSplits

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from streamio.loader.spec import Spec
    from streamio.plan import Segment, StreamedPlan
    from streamio.storage.reader import Reader
    from streamio.storage.shards import Shard

#: Makes records of their texts, given the `__index__` of each.
Parser: TypeAlias = "Callable[[pa.LargeBinaryArray, NDArray[np.int64]], Rows]"

#: Splits that are fetched ahead at most, however small they are.
MOST_HINTED = 16

#: What is found counts with at least so many bytes: small blocks are not read ahead without end.
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

    @property
    def weight(self) -> int:
        """Bytes that it counts with while it waits."""
        return max(LEAST, int(self.nbytes.sum()))

    def place(self, slot: int) -> Place:
        """Where reading goes on with one of its slots; `len(self)` is behind them, whether there is another or not."""
        byte = -1 if self.seek is None else int(self.seek[slot])
        return Place(self.turn, self.at, int(self.chunk.number[0]) + slot, byte)

    def cut(self, low: int, high: int) -> Piece:
        """The slots [low, high)."""
        seek = None if self.seek is None else self.seek[low : high + 1]
        return Piece(self.chunk.cut(low, high), self.turn, self.at, self.nbytes[low:high], seek)


@dataclass(slots=True)
class Found:
    """What was read of a split, behind what was read of it before.

    Attributes:
        block: Its slots, decoded or not.
        split: The split.
        turn: The pass.
        at: Place of the split in the lane.
        first: Number of its first slot; None where it follows what was found before.
        skip: Slots of the split that are not wanted.
    """

    block: Block | Deferred
    split: int
    turn: int
    at: int
    first: int | None
    skip: int

    def decoded(self) -> Block:
        """The block."""
        return self.block.decode() if isinstance(self.block, Deferred) else self.block

    def ready(self) -> Found:
        """The same, decoded."""
        return replace(self, block=self.decoded())

    @property
    def weight(self) -> int:
        """Bytes that it counts with while it waits."""
        block = self.block
        return max(LEAST, block.nbytes if isinstance(block, Deferred) else int(block.nbytes.sum()))


class Making:
    """Makes pieces of what is found in a stream, and numbers their slots.

    Args:
        columnar: Whether columns are wanted where the format has them.
    """

    def __init__(self, *, columnar: bool) -> None:
        self._columnar = columnar
        self._number = 0

    def __call__(self, found: Found) -> Piece | None:
        """The piece; None where nothing of it is wanted."""
        block = found.decoded()
        number = self._number if found.first is None else found.first
        count = len(block.index)
        self._number = number + count
        if self._number <= found.skip:
            return None
        rows, place = block.rows, None
        places: slice | NDArray[np.int64] = slice(0, count)
        if rows.bad:
            fine = np.ones(count, bool)
            fine[list(rows.bad)] = False
            places = np.flatnonzero(fine)
            place = numbered(fine)
        values = taken(rows, places, columnar=self._columnar)
        numbers = np.arange(number, number + count, dtype=np.int64)
        chunk = Chunk(values, np.full(count, found.split, np.int64), numbers, block.index, rows.bad, place)
        piece = Piece(chunk, found.turn, found.at, block.nbytes, block.seek)
        return piece.cut(found.skip - number, count) if number < found.skip else piece


def parser(spec: Spec, plan: StreamedPlan) -> Parser | None:
    """What parses records that a window holds as text; None where it holds the records themselves."""
    return spec.format.parsed if plan.shuffle and isinstance(spec.format, ParsingFormat) else None


class Reading:
    """What runs in a stream's thread: opens one split after the other, and reads what is in it."""

    def __init__(
        self, spec: Spec, reader: Reader, plan: StreamedPlan, lane: tuple[int, int], number: int, place: Place
    ) -> None:
        assert isinstance(spec.splits, StreamedSplits)
        assert isinstance(spec.format, StreamedFormat)
        self._spec = spec
        self._splits = spec.splits
        form = spec.format
        self.columnar = spec.columnar
        self._read = form.deferred if isinstance(form, DeferringFormat) else form.blocks
        if parser(spec, plan) is not None:
            assert isinstance(form, ParsingFormat)
            self._read, self.columnar = form.unparsed, True
        self._reader = reader
        self._plan = plan
        self._stream = (*lane, number)
        self._place = place
        self.name = f"streamio-lane-{lane[0]}-{lane[1]}-{number}"

    def found(self) -> Iterator[Found]:
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
                for found in self._split(order, turn, at, skip, byte):
                    seen = True
                    yield found
                at, skip, byte = at + 1, 0, -1
            if self._spec.end != "cycle" or not seen:
                return
            turn, at = turn + 1, 0

    def segments(self, segments: Sequence[Segment]) -> Iterator[Piece]:
        """The slots of a window, segment by segment."""
        for segment in segments:
            left, make = segment.count, Making(columnar=self.columnar)
            with closing(self._split([segment.split], 0, 0, segment.record, segment.byte)) as found:
                while left:
                    piece = make(next(found))
                    if piece is not None:
                        yield piece.cut(0, min(left, len(piece)))
                        left -= min(left, len(piece))

    def _split(self, order: list[int], turn: int, at: int, skip: int, byte: int) -> Generator[Found, None, None]:
        """What is in a split; `byte` tells where its first `skip` slots end, if it can be gone to."""
        split = order[at]
        start, stop = int(self._splits.start[split]), int(self._splits.stop[split])
        source = self._reader.source(self._spec.shards[int(self._splits.shard[split])])
        sought = skip > 0 and byte >= 0
        self._reader.counters.add(bytes_needed=stop - (byte if sought else start))
        first = skip if sought else 0
        number: int | None = first
        blocks: Iterator[Block | Deferred] = self._read(source, start, stop, first, byte if sought else None)
        following: list[tuple[Shard, int, int]] | None = None
        try:
            for block in blocks:
                if following is None:  # not before the split's own first read is answered
                    following = self._ranges(order[at + 1 : at + 1 + MOST_HINTED])
                self._hint(following)
                yield Found(block, split, turn, at, number, skip)
                number = None
        except CorruptError as error:  # one bad slot stands for the rest
            bad = Bad("corrupt", f"{error}; the rest of the shard is lost", error.position)
            one = np.array([-1], np.int64)
            yield Found(Block(Records([None], {0: bad}), one, one + 1), split, turn, at, number, skip)
        finally:
            end(blocks)

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
