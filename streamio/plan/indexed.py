"""The plan where record counts are known: every slot of the epoch has its place before the first read.

Slots are numbered in base order (splits permuted by seed and epoch, records of a split in order). The full global
batches are cut exactly into lanes, each a contiguous run of positions; what is left over is one short batch at the
end. A position is a slot, until the grid changes within the epoch: then it is a slot that is left (`rest`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from streamio.plan.grid import Grid
from streamio.plan.lane import Lane, Stretch
from streamio.plan.random import permutation
from streamio.plan.rest import Generation, Rest, dealt_on, lane_bounds, tail_bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class IndexedSplits:
    """Splits with counts in the order of the shard list, one entry a split; splits without records are left out.

    Attributes:
        shard: Index into the shard list, int64.
        part: Number of the split within its shard (row group), int64.
        first: Number of its first record within the shard, int64.
        records: Records, int64, at least 1.
        nbytes: Bytes that it takes decoded, int64.
        wire: Bytes to be read for it, int64.
        cut: Records at the end of the last split that are not taken (`max_records=`).
    """

    shard: NDArray[np.int64]
    part: NDArray[np.int64]
    first: NDArray[np.int64]
    records: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    wire: NDArray[np.int64]
    cut: int = 0

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def stored(self) -> NDArray[np.int64]:
        """Records that each split holds where it lies, taken or not, int64."""
        stored: NDArray[np.int64] = self.records.copy()
        stored[-1:] += self.cut
        return stored

    @cached_property
    def record_bytes(self) -> float:
        """Decoded bytes of a record, at about; 0 where there is none."""
        return float(self.nbytes.sum()) / float(self.stored.sum()) if len(self) else 0.0


@dataclass(frozen=True)
class IndexedPlan:
    """One pass over an indexed data set.

    Attributes:
        records: Records of each split in the order of the shard list, int64, each at least 1.
        grid: Lanes and global batch.
        seed: The run's seed.
        epoch: Number of the epoch.
        shuffle: Whether splits and slots are permuted.
        window: Slots a window; without effect where not shuffled.
        turn: Number of the pass within the epoch (`end="cycle"` deals anew each time).
        past: Grids that parts of the pass were delivered under before; what is left is dealt to `grid`.
    """

    records: NDArray[np.int64]
    grid: Grid
    seed: int = 0
    epoch: int = 0
    shuffle: bool = False
    window: int = 1
    turn: int = 0
    past: tuple[Generation, ...] = ()

    @cached_property
    def slots(self) -> int:
        """N, slots of the pass."""
        return int(self.records.sum())

    @cached_property
    def rest(self) -> Rest:
        """What the lanes are cut from: all slots, less what was delivered under other grids."""
        rest = Rest.whole(self.slots)
        for generation in self.past:
            rest = dealt_on(rest, generation, self._window)
        return rest

    @property
    def left(self) -> int:
        """Slots that are dealt to `grid`."""
        return self.rest.length

    @cached_property
    def full(self) -> int:
        """K, full global batches."""
        return self.left // self.grid.batch

    @cached_property
    def steps(self) -> int:
        """Global batches with the last short one."""
        return -(-self.left // self.grid.batch)

    @cached_property
    def splits(self) -> NDArray[np.int64]:
        """Splits in base order, int64."""
        if not self.shuffle:
            return np.arange(len(self.records), dtype=np.int64)
        return permutation(len(self.records), "splits", self.seed, self.epoch, self.turn)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """First slot of each split in base order, and N at the end; int64 of shape (splits + 1,)."""
        return np.concatenate(([0], np.cumsum(self.records[self.splits]))).astype(np.int64)

    def lane(self, row: int, column: int) -> Lane:
        """The lane at (row, column): the full batches of that column, in row-major order of the grid."""
        start, length = lane_bounds(self.left, self.grid, np.array([row]), np.array([column]))
        return Lane(
            row=row,
            column=column,
            start=int(start[0]),
            length=int(length[0]),
            window=self._window,
            rest=self.rest,
            key=("window", self.seed, self.epoch, self.turn),
            generation=len(self.past),
        )

    @property
    def whole(self) -> Lane:
        """All slots of the pass in base order, as a lane; of what was delivered under other grids too."""
        rest, key = Rest.whole(self.slots), ("window", self.seed, self.epoch, self.turn)
        return Lane(row=0, column=0, start=0, length=self.slots, window=0, rest=rest, key=key)

    def tail(self, row: int) -> list[Stretch]:
        """A row's slots of the last short batch, in the order of positions; empty where none is left for it."""
        low, high = tail_bounds(self.left, self.grid)[row : row + 2].tolist()
        part = replace(self.lane(row, 0), start=low, length=high - low, window=0)
        return list(part.stretches())

    def places(self, k: int) -> tuple[int, int, int]:
        """Where full batch k lies: its column, and the places [from, to) in each lane of that column."""
        turn, column = divmod(k, self.grid.columns)
        return column, turn * self.grid.share, (turn + 1) * self.grid.share

    def locate(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For slots of any order: the split that each falls into and its record number there; two int64 arrays."""
        at = np.searchsorted(self.offsets, slots, side="right") - 1
        return self.splits[at], slots - self.offsets[at]

    def splits_between(self, start: int, stop: int) -> NDArray[np.int64]:
        """The splits that hold the slots [start, stop), in base order."""
        places = self.between(start, stop)
        return self.splits[places.start : places.stop]

    def between(self, start: int, stop: int) -> range:
        """The places in base order of the splits that hold the slots [start, stop)."""
        if stop <= start:
            return range(0)
        low = int(np.searchsorted(self.offsets, start, side="right")) - 1
        return range(low, int(np.searchsorted(self.offsets, stop, side="left")))

    @property
    def _window(self) -> int:
        return self.window if self.shuffle else 0
