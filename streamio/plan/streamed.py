"""The plan where record counts are not known: whole splits are dealt to one lane per worker, in shuffled order.

A lane is read from its first split to its last, several side by side where it is shuffled; how far it has come is
a cursor, which is all that a status holds of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from streamio.plan.random import permutation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

#: Bytes of a split of uncompressed lines, at about. Fixed: splits, and so the order, must not depend on the machine.
SPLIT_BYTES = 4 << 20

#: Splits that a shuffled lane reads side by side. Fixed, as it decides the order.
STREAMS = 8


@dataclass(frozen=True)
class StreamedSplits:
    """Byte ranges of shards in the order of the shard list, one entry a split; empty shards have none.

    Attributes:
        shard: Index into the shard list, int64.
        start: First byte, int64.
        stop: Byte behind the last, int64.
    """

    shard: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

    @classmethod
    def cut(cls, sizes: NDArray[np.int64], cuttable: Callable[[int], bool]) -> StreamedSplits:
        """Cut the shards that can be read from any byte into equal pieces of about `SPLIT_BYTES`; others stay whole.

        Args:
            sizes: Length of each shard in bytes, int64.
            cuttable: Whether the shard of this index may be cut; asked for shards larger than a piece only.
        """
        pieces = np.where(sizes > 0, 1, 0)
        for index in np.flatnonzero(sizes > SPLIT_BYTES):
            if cuttable(int(index)):
                pieces[index] = (2 * int(sizes[index]) + SPLIT_BYTES) // (2 * SPLIT_BYTES)  # rounded
        shard = np.repeat(np.arange(len(sizes), dtype=np.int64), pieces)
        number = np.arange(len(shard), dtype=np.int64) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        each, longer = np.divmod(sizes[shard], pieces[shard])  # the first ones are a byte longer
        start = number * each + np.minimum(number, longer)
        return cls(shard, start, start + each + (number < longer))


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading one stream of a lane goes on.

    Attributes:
        turn: Number of the pass (`end="cycle"`), 0 for the first.
        split: Place of the split in the stream.
        record: Slots of that split that lie before.
        byte: Byte of the shard from which reading can go on with the next one; -1 where it can't, or need not.
    """

    turn: int = 0
    split: int = 0
    record: int = 0
    byte: int = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive slots of one split that are part of a window.

    Attributes:
        split: The split.
        record: Slots of it that lie before.
        count: How many they are.
        byte: As `Place.byte`.
    """

    split: int
    record: int
    count: int
    byte: int = -1


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a lane has come.

    Attributes:
        places: Where its current window begins in each of its streams; empty for the beginning of all.
        offset: Slots of the window that have been delivered.
        ends: Where the streams go on behind that window, where it is permuted and begun; else empty.
        segments: What it is made of, likewise.
        rests: Windows begun under other grids that lie behind; while there are others, `offset` is that of the next.
    """

    places: tuple[Place, ...] = ()
    offset: int = 0
    ends: tuple[Place, ...] = ()
    segments: tuple[Segment, ...] = ()
    rests: int = 0


#: Where every lane begins.
START = Cursor()


@dataclass(frozen=True, slots=True)
class BegunWindow:
    """What is left of a window that was begun under another grid.

    Attributes:
        key: What its permutation is keyed by.
        offset: Slots of it that have been delivered.
        segments: What it is made of, in order.
    """

    key: tuple[int | str, ...]
    offset: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class StreamedRest:
    """What was left of a pass when its grid changed.

    Attributes:
        windows: Windows that were begun.
        entries: Splits, int64 of shape (n, 3): the split, slots of it that lie before, and the byte behind these (as
            `Place.byte`). Begun ones first, then whole ones in base order.
        turn: The pass; later ones are dealt whole.
    """

    windows: tuple[BegunWindow, ...]
    entries: NDArray[np.int64]
    turn: int = 0


@dataclass(frozen=True)
class StreamedPlan:
    """One pass over a streamed data set.

    Attributes:
        splits: Number of splits.
        rows: Rows of the lane grid (one a rank).
        columns: Columns of the lane grid (one a worker).
        seed: The run's seed.
        epoch: Number of the epoch.
        shuffle: Whether splits are permuted.
        share: Whether lanes without a split share one (`end="cycle"`), in place of being empty.
        rest: What is left of the pass at hand, where it was begun under another grid.
    """

    splits: int
    rows: int
    columns: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = False
    share: bool = False
    rest: StreamedRest | None = None

    @property
    def first(self) -> int:
        """The pass that lanes begin with."""
        return 0 if self.rest is None else self.rest.turn

    def order(self, turn: int = 0) -> NDArray[np.int64]:
        """The splits of a whole pass in base order, int64."""
        return _order(self.splits, self.seed, self.epoch, turn, shuffle=self.shuffle)

    def entries(self, row: int, column: int, turn: int = 0) -> NDArray[np.int64]:
        """What a lane reads in a pass, int64 of shape (n, 3): see `StreamedRest.entries`.

        Dealt by turns, one to each rank before a second to any.
        """
        number, lanes = column * self.rows + row, self.rows * self.columns
        if self.rest is not None and turn == self.rest.turn:
            return self.rest.entries[number::lanes]
        order = self.order(turn)
        repeats = number >= self.splits > 0 and self.share
        order = order[number % self.splits :][:1] if repeats else order[number::lanes]
        return np.stack((order, np.zeros_like(order), np.full_like(order, -1)), axis=1)

    def lane(self, row: int, column: int, turn: int = 0) -> NDArray[np.int64]:
        """The splits of a lane in the order of reading, int64."""
        return self.entries(row, column, turn)[:, 0]

    def windows(self, row: int, column: int) -> tuple[BegunWindow, ...]:
        """The begun windows that a lane goes on with before anything else."""
        if self.rest is None:
            return ()
        return self.rest.windows[column * self.rows + row :: self.rows * self.columns]

    def streams(self, row: int, column: int) -> int:
        """How many streams a lane is read in at the same time, so that a shuffled window holds records of each."""
        whole = self.first + (self.rest is not None and self.share)  # in an endless stream the passes that follow count
        return max(1, min(STREAMS, len(self.lane(row, column, whole)))) if self.shuffle else 1

    def stream(self, row: int, column: int, number: int, turn: int = 0) -> NDArray[np.int64]:
        """What one of a lane's streams reads in a pass, as `entries`."""
        return self.entries(row, column, turn)[number :: self.streams(row, column)]

    def shared(self, row: int, column: int) -> bool:
        """Whether a lane only repeats what another delivers."""
        return self.share and column * self.rows + row >= self.splits

    def window_key(self, row: int, column: int, places: Sequence[Place]) -> tuple[int | str, ...]:
        """What the permutation of the window that begins at these places is keyed by."""
        begins = (number for place in places for number in (place.turn, place.split, place.record))
        return ("window", self.seed, self.epoch, row, column, *begins)

    def left(self, cursors: Mapping[tuple[int, int], Cursor], ended: Collection[tuple[int, int]]) -> StreamedRest:
        """What is left of the passes under way, to be dealt to another grid.

        Lanes of an endless stream come apart: those ahead have begun a later pass, of which the others' shares are left
        whole.

        Args:
            cursors: How far each lane has come, by row and column.
            ended: Lanes with nothing left.
        """
        windows: list[BegunWindow] = []
        begun: list[list[int]] = []
        whole: dict[int, list[int]] = {}
        places: dict[tuple[int, int], tuple[Place, ...]] = {}
        for lane, cursor in cursors.items():
            if lane in ended:
                continue
            places[lane] = (cursor.ends or cursor.places) or (Place(self.first),) * self.streams(*lane)
            pending = self.windows(*lane)[cursor.rests :]
            if pending and cursor.offset:
                first = pending[0]
                pending = (BegunWindow(first.key, first.offset + cursor.offset, first.segments), *pending[1:])
            windows += pending
            if cursor.segments and not self._repeats(*lane, cursor.places[0].turn):
                windows.append(BegunWindow(self.window_key(*lane, cursor.places), cursor.offset, cursor.segments))
        last = max((place.turn for each in places.values() for place in each), default=self.first)
        for lane, streams in places.items():
            for number, place in enumerate(streams):
                for turn in range(place.turn, last + 1):
                    if self._repeats(*lane, turn):
                        continue
                    entries = self.stream(*lane, number, turn).tolist()
                    if turn == place.turn:
                        entries = entries[place.split :]
                        if entries and place.record:
                            begun.append([entries.pop(0)[0], place.record, place.byte])
                    begun += [entry for entry in entries if entry[1]]
                    whole.setdefault(turn, []).extend(entry[0] for entry in entries if not entry[1])
        for turn in sorted(whole):
            rank = np.empty(self.splits, np.int64)
            rank[self.order(turn)] = np.arange(self.splits)
            begun += [[split, 0, -1] for split in sorted(whole[turn], key=rank.__getitem__)]
        return StreamedRest(tuple(windows), np.array(begun, np.int64).reshape(-1, 3), last)

    def _repeats(self, row: int, column: int, turn: int) -> bool:
        """Whether a lane only repeats in a pass what another delivers; what was left of a pass is dealt once."""
        return self.shared(row, column) and (self.rest is None or turn != self.rest.turn)


@lru_cache(maxsize=4)  # every lane and stream of a process asks for the same ones
def _order(splits: int, seed: int, epoch: int, turn: int, *, shuffle: bool) -> NDArray[np.int64]:
    order = permutation(splits, "splits", seed, epoch, turn) if shuffle else np.arange(splits, dtype=np.int64)
    order.flags.writeable = False
    return order
