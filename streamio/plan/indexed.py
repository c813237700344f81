"""The plan where record counts are known: every slot of the epoch has its place before the first read.

Slots are numbered in base order (splits permuted by seed and epoch, records of a split in order). The full global
batches are cut exactly into lanes, each a contiguous run of slots; what is left over is one short batch at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from streamio.plan.grid import Grid
from streamio.plan.random import permutation

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
    """

    shard: NDArray[np.int64]
    part: NDArray[np.int64]
    first: NDArray[np.int64]
    records: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    wire: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def record_bytes(self) -> float:
        """Decoded bytes of a record, at about; 0 where there is none."""
        return float(self.nbytes.sum()) / float(self.records.sum()) if len(self) else 0.0


@dataclass(frozen=True, slots=True)
class Lane:
    """A run of slots that one worker at a time reads in order, a window after the other.

    Attributes:
        row: Row of the grid.
        column: Column of the grid.
        start: First slot in base order.
        length: Number of slots.
        window: Slots that are permuted together; 0 keeps the base order.
        key: What the windows' permutations are keyed by, beside the window's number.
    """

    row: int
    column: int
    start: int
    length: int
    window: int
    key: tuple[int | str, ...]

    def span(self, window: int) -> tuple[int, int]:
        """The places [from, to) of the lane that a window takes."""
        size = self.window or self.length
        return window * size, min((window + 1) * size, self.length)

    def window_at(self, place: int) -> int:
        """Number of the window that a place of the lane falls into."""
        return place // (self.window or max(1, self.length))

    def order(self, window: int) -> NDArray[np.int64]:
        """The slots of a window in the order of delivery, int64."""
        low, high = self.span(window)
        if not self.window:
            return np.arange(self.start + low, self.start + high, dtype=np.int64)
        return self.start + low + permutation(high - low, *self.key, window)


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
    """

    records: NDArray[np.int64]
    grid: Grid
    seed: int = 0
    epoch: int = 0
    shuffle: bool = False
    window: int = 1
    turn: int = 0

    @cached_property
    def slots(self) -> int:
        """N, slots of the pass."""
        return int(self.records.sum())

    @cached_property
    def full(self) -> int:
        """K, full global batches."""
        return self.slots // self.grid.batch

    @cached_property
    def steps(self) -> int:
        """Global batches with the last short one."""
        return -(-self.slots // self.grid.batch)

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
        """The lane at (row, column): the slots of the full batches of that column, in row-major order of the grid."""
        share = self.grid.share
        each, longer = divmod(self.full, self.grid.columns)
        return Lane(
            row=row,
            column=column,
            start=share * (row * self.full + column * each + min(column, longer)),
            length=share * (each + (column < longer)),
            window=self.window if self.shuffle else 0,
            key=("window", self.seed, self.epoch, self.turn, row, column),
        )

    def tail(self, row: int) -> NDArray[np.int64]:
        """A row's slots of the last short batch, in base order; int64, empty where none is left for it."""
        start = self.full * self.grid.batch
        each, longer = divmod(self.slots - start, self.grid.rows)
        low = start + row * each + min(row, longer)
        return np.arange(low, low + each + (row < longer), dtype=np.int64)

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
