"""Which source each place of a mixture takes: a function of (seed, epoch, lane, place), with closed forms for counts.

Places are dealt to sources by rounding the weights cumulatively, and permuted in blocks of whole batches. What a source
holds, and in which order it is read, is the business of its own plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from streamio.plan.random import permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.plan.grid import Grid

Stop: TypeAlias = Literal["first_exhausted", "all_exhausted", "cycle"]

#: Places of a lane that are permuted together, at least: whole batches of them.
BLOCK = 64

#: Neighbouring lanes begin at so many places of the rounding, so that a rare source does not come in all lanes at once.
PHASES = 16

#: Weights are counted in parts of this, so that all arithmetic is on whole numbers.
SCALE = 1 << 32


@dataclass(frozen=True)
class MixedPlan:
    """An epoch of a mixture.

    Attributes:
        records: Slots of each source's pass.
        weights: Share of places that each source is to have, in any unit; more than 0.
        grid: Lanes and global batch, of the mixture and of each source.
        mandatory: Sources that have a place in each row of each batch.
        stop: What ends the epoch: the first source that has nothing left, the last one, or nothing.
        seed: The run's seed.
        epoch: Number of the epoch.
    """

    records: tuple[int, ...]
    weights: tuple[float, ...]
    grid: Grid
    mandatory: tuple[int, ...] = ()
    stop: Stop = "first_exhausted"
    seed: int = 0
    epoch: int = 0

    # Shares

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Share of each source: its weight, unless that is less than one place a batch and it is mandatory."""
        total = sum(self._free_weights)
        free = [weight / total * self._free if total else 0.0 for weight in self._free_weights]
        return tuple((one + self._fixed[source]) / self.grid.share for source, one in enumerate(free))

    @property
    def raised(self) -> tuple[int, ...]:
        """Mandatory sources whose share is more than their weight."""
        total = math.fsum(self.weights)
        return tuple(one for one in self.mandatory if self.shares[one] > self.weights[one] / total * (1 + 1e-6))

    @property
    def deviation(self) -> int:
        """How many places a source is away from its share, at most, behind any number of blocks of a lane."""
        return math.ceil(math.log2(max(1, len(self.weights))))

    # Counts

    def left_out(self, source: int) -> int:
        """Slots of a source's pass that its lanes do not hold."""
        return self.records[source] % self.grid.rows

    def lane_length(self, source: int, column: int) -> int:
        """Slots of a source's pass in each lane of a column."""
        each, longer = divmod(self.records[source] // self.grid.rows, self.grid.columns)
        return each + (column < longer)

    def counts(self, row: int, column: int, batches: int) -> list[int]:
        """Places of each source in the first batches of a lane, where that many are whole blocks or end the lane."""
        return self._counts(self._phase(row, column), batches)

    @cached_property
    def steps(self) -> int:
        """Global batches of the epoch; of an endless one, those before the first source comes to its end."""
        columns = range(self.grid.columns)
        if self.stop == "all_exhausted":
            return max((self._lane_batches(column) - 1) * self.grid.columns + column + 1 for column in columns)
        return min(self._lane_batches(column) * self.grid.columns + column for column in columns)

    # Places

    def batch(self, row: int, k: int) -> tuple[NDArray[np.int64], list[int]]:
        """A row's share of global batch k.

        Returns:
            The source of each place, int64 of shape (b,); and how many places each source had in the lane before.
        """
        turn, column = divmod(k, self.grid.columns)
        number, at = divmod(turn, self._batches)
        block = self._block(row, column, number)
        begun = self.counts(row, column, number * self._batches)
        inside = np.bincount(block[:at].reshape(-1), minlength=len(self.weights)).tolist()
        return block[at], [before + more for before, more in zip(begun, inside, strict=True)]

    def _block(self, row: int, column: int, number: int) -> NDArray[np.int64]:
        """The sources of a block's places, int64 of shape (batches, b)."""
        share, first = self.grid.share, number * self._batches
        last = first + self._batches
        if self.stop != "cycle":
            last = min(last, -((column - self.steps) // self.grid.columns))  # the last block of a lane may be shorter
        batches, before = last - first, self.counts(row, column, first)
        counts = [b - a for a, b in zip(before, self.counts(row, column, last), strict=True)]
        free = [count - batches * fixed for count, fixed in zip(counts, self._fixed, strict=True)]
        sources = np.repeat(np.arange(len(free)), free)
        key = ("mixture", self.seed, self.epoch, row, column, number)
        places = sources[permutation(len(sources), *key)].reshape(batches, share - len(self.mandatory))
        if not self.mandatory:
            return places
        places = np.concatenate((np.tile(np.array(self.mandatory), (batches, 1)), places), axis=1)
        order = permutation(places.size, *key, "mandatory").reshape(places.shape).argsort(axis=1)
        return np.take_along_axis(places, order, axis=1)

    # Arithmetic

    @cached_property
    def _fixed(self) -> tuple[int, ...]:
        """Places of each source in each batch of a lane that the weights do not decide."""
        return tuple(int(source in self.mandatory) for source in range(len(self.weights)))

    @property
    def _free(self) -> int:
        """Places of each batch of a lane that the weights decide."""
        return self.grid.share - len(self.mandatory)

    @cached_property
    def _free_weights(self) -> tuple[int, ...]:
        """Weights by which those are dealt."""
        total = math.fsum(self.weights)
        parts = [max(1, round(weight / total * SCALE)) for weight in self.weights]
        whole = sum(parts)
        return tuple(
            max(0, part * self.grid.share - whole * fixed) for part, fixed in zip(parts, self._fixed, strict=True)
        )

    @property
    def _batches(self) -> int:
        """Batches of a block."""
        return -(-BLOCK // self.grid.share)

    def _phase(self, row: int, column: int) -> int:
        return (row + column * self.grid.rows) % PHASES

    def _counts(self, phase: int, batches: int) -> list[int]:
        begun = phase * self._batches
        before = spread(begun * self._free, self._free_weights)
        behind = spread((begun + batches) * self._free, self._free_weights)
        return [b - a + batches * fixed for a, b, fixed in zip(before, behind, self._fixed, strict=True)]

    def _lane_batches(self, column: int) -> int:
        """Batches that every lane of a column has at least (at most, where all sources are to be exhausted)."""
        lengths = [self.lane_length(source, column) for source in range(len(self.records))]
        phases = {self._phase(row, column) for row in range(min(PHASES, self.grid.rows))}

        def pairs(batches: int) -> Iterable[tuple[int, int]]:
            return (pair for phase in phases for pair in zip(self._counts(phase, batches), lengths, strict=True))

        if self.stop == "all_exhausted":
            return _least(lambda batches: all(count >= length for count, length in pairs(batches)))
        return _least(lambda batches: any(count > length for count, length in pairs(batches))) - 1


def spread(places: int, weights: Sequence[int]) -> list[int]:
    """How many of so many places each source has; none has fewer of more places.

    Halves of the sources share the places by their weights, rounded, and so on within each half: with n sources each
    count is at most half a place a halving away from its exact share, log2(n) / 2.
    """
    if len(weights) == 1:
        return [places]
    middle = len(weights) // 2
    total, left = sum(weights), sum(weights[:middle])
    first = (2 * left * places + total) // (2 * total) if total else 0
    return spread(first, weights[:middle]) + spread(places - first, weights[middle:])


def _least(holds: Callable[[int], bool]) -> int:
    """The least number from 0 on that something holds for, which then holds for all larger ones."""
    if holds(0):
        return 0
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
