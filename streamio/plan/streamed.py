"""The plan where record counts are not known: whole splits are dealt to one lane per worker, in shuffled order.

A lane is read from its first split to its last, several side by side where it is shuffled; how far it has come is
a cursor, which is all that a status holds of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamio.plan.random import permutation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
class Cursor:
    """How far a lane has come.

    Attributes:
        places: Where its current window begins in each of its streams; empty for the beginning of all.
        offset: Slots of the window that have been delivered.
    """

    places: tuple[Place, ...] = ()
    offset: int = 0


#: Where every lane begins.
START = Cursor()


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
    """

    splits: int
    rows: int
    columns: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = False
    share: bool = False

    def lane(self, row: int, column: int, turn: int = 0) -> NDArray[np.int64]:
        """The splits of a lane in the order of reading, int64.

        Dealt by turns, one to each rank before a second to any.
        """
        order = np.arange(self.splits, dtype=np.int64)
        if self.shuffle:
            order = permutation(self.splits, "splits", self.seed, self.epoch, turn)
        number = column * self.rows + row
        if number >= self.splits > 0 and self.share:
            return order[number % self.splits :][:1]
        return order[number :: self.rows * self.columns]

    def streams(self, row: int, column: int) -> int:
        """How many streams a lane is read in at the same time, so that a shuffled window holds records of each."""
        return max(1, min(STREAMS, len(self.lane(row, column)))) if self.shuffle else 1

    def stream(self, row: int, column: int, number: int, turn: int = 0) -> NDArray[np.int64]:
        """The splits of one of a lane's streams in the order of reading, int64."""
        return self.lane(row, column, turn)[number :: self.streams(row, column)]

    def shared(self, row: int, column: int) -> bool:
        """Whether a lane only repeats what another delivers."""
        return self.share and column * self.rows + row >= self.splits

    def window_key(self, row: int, column: int, places: Sequence[Place]) -> tuple[int | str, ...]:
        """What the permutation of the window that begins at these places is keyed by."""
        begins = (number for place in places for number in (place.turn, place.split, place.record))
        return ("window", self.seed, self.epoch, row, column, *begins)
