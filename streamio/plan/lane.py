"""A lane: positions of a rest that one worker at a time reads in order, a stretch after the other.

A stretch is what is permuted together: a window, or what is left of one that was begun under another grid. Where
nothing is permuted a stretch is any run of the lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from streamio.plan.random import permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.plan.rest import Rest

#: Slots of a stretch at most where nothing is permuted, so that none of them is too large to be listed.
RUN = 1 << 16


@dataclass(frozen=True)
class Stretch:
    """Consecutive places of a lane.

    Attributes:
        first: The first place.
        last: Behind the last.
        ranges: The slots that it is made of as ranges [start, stop), int64 of shape (n, 2); those of the whole window.
        key: What their permutation is keyed by; None where they are in base order.
        skipped: Slots at the front of the permutation that are not its own: they were delivered before.
    """

    first: int
    last: int
    ranges: NDArray[np.int64]
    key: tuple[int | str, ...] | None
    skipped: int = 0

    def __len__(self) -> int:
        return self.last - self.first

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The slots in the order of delivery, int64 of shape (len,)."""
        slots = listed(self.ranges)
        if self.key is None:
            return slots
        return slots[permutation(len(slots), *self.key)[self.skipped : self.skipped + len(self)]]


@dataclass(frozen=True)
class Lane:
    """A run of positions.

    Attributes:
        row: Row of the grid.
        column: Column of the grid.
        start: First position.
        length: Number of positions.
        window: Slots that are permuted together; 0 keeps the base order.
        rest: What the positions are of.
        key: What permutations of the pass are keyed by.
        generation: Number of the grid in the epoch.
    """

    row: int
    column: int
    start: int
    length: int
    window: int
    rest: Rest
    key: tuple[int | str, ...]
    generation: int = 0

    def stretch(self, place: int) -> Stretch:
        """The stretch that a place of the lane lies in; where nothing is permuted it begins there."""
        position, fixed = self.start + place, self.rest.fixed
        if position < fixed:
            offsets = self.rest.begun_offsets
            piece = int(np.searchsorted(offsets, position, side="right")) - 1
            low = int(self.rest.begun[2, piece])
            first = max(self.start, int(offsets[piece]))
            last = min(self.start + self.length, int(offsets[piece + 1]))
            ranges, name = self.rest.window(piece)
            key, skipped = window_key(self.key, *name), low + first - int(offsets[piece])
            return Stretch(first - self.start, last - self.start, ranges, key, skipped)
        opened = max(0, fixed - self.start)  # the place where its own windows begin
        if not self.window:
            return self.run(place, min(self.length, place + RUN))
        number = (place - opened) // self.window
        first = opened + number * self.window
        last = min(first + self.window, self.length)
        key = window_key(self.key, self.generation, self.row, self.column, number)
        return Stretch(first, last, self._untouched(first, last), key)

    def run(self, low: int, high: int) -> Stretch:
        """The places [low, high), which are in base order."""
        return Stretch(low, high, self._untouched(low, high), None)

    def stretches(self, low: int = 0, high: int | None = None) -> Iterator[Stretch]:
        """The stretches that hold the places [low, high), in order."""
        high = self.length if high is None else min(high, self.length)
        while low < high:
            stretch = self.stretch(low)
            yield stretch
            low = stretch.last

    def behind(self, place: int) -> NDArray[np.int64]:
        """The slots of the places from one on as ranges, in the order of reading, windows unpermuted."""
        fixed = self.rest.fixed - self.start
        ranges = []
        while place < min(self.length, fixed):
            stretch = self.stretch(place)
            ranges.append(stretch.ranges)
            place = stretch.last
        return np.concatenate([*ranges, self._untouched(place, self.length)])

    def _untouched(self, low: int, high: int) -> NDArray[np.int64]:
        begin = self.start - self.rest.fixed
        return self.rest.untouched(begin + low, begin + max(low, high))


def window_key(
    key: tuple[int | str, ...], generation: int, row: int, column: int, number: int
) -> tuple[int | str, ...]:
    """What a window's permutation is keyed by."""
    if generation:
        return (*key, "generation", generation, row, column, number)
    return (*key, row, column, number)


def listed(ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The slots of ranges [start, stop), in order; int64."""
    if len(ranges) == 1:
        return np.arange(int(ranges[0, 0]), int(ranges[0, 1]), dtype=np.int64)
    count = ranges[:, 1] - ranges[:, 0]
    ends = np.cumsum(count)
    slots: NDArray[np.int64] = np.arange(int(count.sum()), dtype=np.int64)
    slots += np.repeat(ranges[:, 0] - (ends - count), count)
    return slots


def runs(slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rising slots as ranges [start, stop), int64 of shape (n, 2)."""
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    first = slots[np.concatenate(([0], breaks))]
    last = slots[np.concatenate((breaks - 1, [len(slots) - 1]))]
    return np.stack((first, last + 1), axis=1)
