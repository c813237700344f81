"""What is left of a pass when its grid changes: positions instead of slots, and how they are dealt to a new grid.

A rest is a sequence of positions. First come the rests of windows that were begun, in the order they had and never
permuted anew; then the ranges of slots that nothing was delivered of, in base order. Pure arithmetic on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from streamio.plan.grid import Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Generation:
    """A grid that a part of an epoch was delivered under.

    Attributes:
        grid: The grid.
        ks: Global batches that were delivered under it: one number for all rows, or one for each of several equal
            groups of neighbouring rows (ranks that came apart, `end="exact"`).
    """

    grid: Grid
    ks: tuple[int, ...]

    @property
    def k(self) -> int:
        """Global batches that were delivered of it, to some rows at least."""
        return max(self.ks)


@dataclass(frozen=True)
class Windows:
    """Windows that were begun under one grid.

    Attributes:
        place: Row, column and number in the lane of each, int64 of shape (3, m).
        ends: Where the ranges of each end in `ranges`, int64 of shape (m,).
        ranges: Slots [start, stop) that they are made of, int64 of shape (2, x).
    """

    place: NDArray[np.int64]
    ends: NDArray[np.int64]
    ranges: NDArray[np.int64]


@dataclass(frozen=True)
class Rest:
    """Slots of a pass that are not delivered yet, in the order in which lanes are cut from them.

    Attributes:
        begun: Rests of begun windows, int64 of shape (4, n): the generation, the window's index in its `windows`, and
            the places [from, to) in its order that are left.
        ranges: Slots [start, stop) that nothing was delivered of, rising, int64 of shape (2, y).
        windows: The begun windows of each generation so far.
    """

    begun: NDArray[np.int64]
    ranges: NDArray[np.int64]
    windows: tuple[Windows, ...] = ()

    @classmethod
    def whole(cls, slots: int) -> Rest:
        """All slots of a pass."""
        return cls(np.empty((4, 0), np.int64), np.array([[0], [slots]], np.int64)[:, : bool(slots)])

    @cached_property
    def begun_offsets(self) -> NDArray[np.int64]:
        """First position of each begun window's rest, and behind the last; int64 of shape (n + 1,)."""
        return _offsets(self.begun[3] - self.begun[2])

    @cached_property
    def range_offsets(self) -> NDArray[np.int64]:
        """First position of each range, counted from the first range; and behind the last."""
        return _offsets(self.ranges[1] - self.ranges[0])

    @property
    def fixed(self) -> int:
        """Positions that are rests of begun windows."""
        return int(self.begun_offsets[-1])

    @property
    def length(self) -> int:
        """Positions."""
        return self.fixed + int(self.range_offsets[-1])

    def window(self, piece: int) -> tuple[NDArray[np.int64], tuple[int, int, int, int]]:
        """The window of a begun window's rest: its slots as ranges (int64 of shape (z, 2)), and its name.

        The name is its generation, row, column and number in the lane.
        """
        generation, index = self.begun[:2, piece].tolist()
        windows = self.windows[generation]
        low = int(windows.ends[index - 1]) if index else 0
        row, column, number = windows.place[:, index].tolist()
        ranges = windows.ranges[:, low : int(windows.ends[index])]
        return ranges.T, (generation, row, column, number)

    def untouched(self, low: int, high: int) -> NDArray[np.int64]:
        """The slots of positions [low, high), counted from the first range, as ranges; int64 of shape (z, 2)."""
        ranges, _ = _part(self.ranges, self.range_offsets, np.array([low]), np.array([high]))
        return np.transpose(ranges)


def lane_bounds(
    length: int, grid: Grid, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First position and number of positions of lanes that are cut from `length` positions; two int64 arrays.

    The full batches of a column lie in its lanes, which follow each other in row-major order of the grid.
    """
    share, full = grid.share, length // grid.batch
    each, longer = divmod(full, grid.columns)
    start = share * (rows * full + columns * each + np.minimum(columns, longer))
    return start, share * (each + (columns < longer))


def tail_bounds(length: int, grid: Grid) -> NDArray[np.int64]:
    """First position of each row's part of the short batch behind the full ones, and the end; int64 of (rows + 1,)."""
    first = length - length % grid.batch
    each, longer = divmod(length - first, grid.rows)
    row = np.arange(grid.rows + 1)
    return first + row * each + np.minimum(row, longer)


def dealt_on(rest: Rest, generation: Generation, window: int) -> Rest:
    """What is left of a rest after a generation's batches.

    Args:
        rest: What the generation's lanes were cut from.
        generation: Its grid, and the batches delivered.
        window: Slots a window; 0 where nothing is permuted.
    """
    grid = generation.grid
    full = rest.length // grid.batch
    ks = np.repeat(np.array(generation.ks, np.int64), grid.rows // len(generation.ks))  # by row
    rows = np.repeat(np.arange(grid.rows), grid.columns)
    columns = np.tile(np.arange(grid.columns), grid.rows)
    start, length = lane_bounds(rest.length, grid, rows, columns)
    turns, more = np.divmod(np.minimum(ks, full)[rows], grid.columns)
    # Behind the lanes come the rows' parts of the short batch, as if they were lanes.
    tail = tail_bounds(rest.length, grid)
    low = np.concatenate((start + grid.share * (turns + (columns < more)), np.where(ks > full, tail[1:], tail[:-1])))
    high = np.concatenate((start + length, tail[1:]))
    start = np.concatenate((start, tail[:-1]))
    fixed = rest.fixed
    begun = _without(rest.begun, rest.begun_offsets, np.minimum(start, fixed), np.minimum(low, fixed))
    # From here on positions are counted from the first range.
    start, low, high = (np.maximum(bound, fixed) - fixed for bound in (start, low, high))
    behind = (low - start) % window if window else np.zeros_like(low)
    broken = np.flatnonzero((behind > 0) & (low < high))
    broken = broken[broken < len(rows)]  # the short batch is not permuted
    behind, first = behind[broken], start[broken] + (low - start)[broken] - behind[broken]
    last = np.minimum(first + window, high[broken])
    low[broken] = last
    ranges, ends = _part(rest.ranges, rest.range_offsets, first, last)
    place = np.stack((rows[broken], columns[broken], (first - start[broken]) // (window or 1)))
    new = np.stack((np.full(len(broken), len(rest.windows)), np.arange(len(broken)), behind, last - first))
    return Rest(
        begun=np.concatenate(
            (begun, new), axis=1
        ),  # lanes with rests of older windows come before those with their own
        ranges=_merged(_without(rest.ranges, rest.range_offsets, start, low)),
        windows=(*rest.windows, Windows(place, ends, ranges)),
    )


def cut(
    offsets: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Intervals of positions, cut where pieces begin.

    Args:
        offsets: First position of each piece, and behind the last; int64 of shape (pieces + 1,).
        low: First position of each interval.
        high: Behind its last; empty intervals come to nothing.

    Returns:
        For each part in order: its interval, its piece, and from where to where in the piece; four int64 arrays.
    """
    first = np.searchsorted(offsets, low, side="right") - 1
    last = np.searchsorted(offsets, high, side="left")
    count = np.where(high > low, last - first, 0)
    interval = np.repeat(np.arange(len(low)), count)
    piece = np.arange(len(interval)) - np.repeat(np.cumsum(count) - count, count) + first[interval]
    begin = offsets[piece]
    start = np.maximum(low[interval], begin) - begin
    stop = np.minimum(high[interval], offsets[piece + 1]) - begin
    return interval, piece, start, stop


def _part(
    ranges: NDArray[np.int64], offsets: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The slots of intervals of positions as ranges, and where those of each interval end among them."""
    interval, piece, start, stop = cut(offsets, low, high)
    origin = ranges[0, piece]
    return np.stack((origin + start, origin + stop)), np.cumsum(np.bincount(interval, minlength=len(low)))


def _without(
    pieces: NDArray[np.int64], offsets: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Pieces less some intervals of their positions.

    Args:
        pieces: Columns whose last two entries are where a piece begins and ends.
        offsets: First position of each, and behind the last.
        low: First position of each interval, rising.
        high: Behind its last.
    """
    taken = high > low
    low, high = low[taken], high[taken]
    if not len(low):
        return pieces
    cuts = np.unique(np.concatenate((low, high)))
    at = np.searchsorted(offsets, cuts, side="right") - 1
    inside = offsets[at] < cuts  # in the middle of a piece, which becomes two
    cuts, at = cuts[inside], at[inside]
    starts = np.insert(offsets, at + 1, cuts)
    source = np.insert(np.arange(pieces.shape[1]), at + 1, at)
    depth = np.zeros(len(starts), np.int8)
    depth[np.searchsorted(starts, low)] += 1
    depth[np.searchsorted(starts, high)] -= 1
    left = np.flatnonzero(np.cumsum(depth[:-1], dtype=np.int8) == 0)
    source, begin = source[left], starts[left]
    found = pieces.take(source, axis=1)
    found[-2] += begin - offsets[source]
    found[-1] = found[-2] + starts[left + 1] - begin
    return found


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64, copy=False)


def _merged(ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rising ranges with those made one that touch."""
    if not ranges.shape[1]:
        return ranges
    breaks = ranges[0, 1:] != ranges[1, :-1]
    return np.stack((ranges[0, np.append(True, breaks)], ranges[1, np.append(breaks, True)]))
