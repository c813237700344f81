"""What a plan means for those who read: who reads what, how much of it twice, and what to look out for.

Pure functions of plans to figures. Nothing is read or printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from streamio.cli import advice
from streamio.errors import TopologyError
from streamio.plan import Grid, IndexedPlan, StreamedPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.plan import IndexedSplits, StreamedSplits

End: TypeAlias = Literal["even", "exact", "cycle"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Who runs: ranks, workers and the lane grid between them.

    Attributes:
        grid: The lane grid.
        world_size: Number of ranks.
        wanted: Workers of each rank that were asked for; 0 counts as one.

    Raises:
        TopologyError: The ranks can't share the rows.
    """

    grid: Grid
    world_size: int = 1
    wanted: int = 0

    def __post_init__(self) -> None:
        self.grid.rows_of(0, self.world_size)

    @property
    def workers(self) -> int:
        """Workers of each rank that have columns."""
        return self.grid.workers(self.wanted)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is read in one go: a lane, or a row's part of the last short batch.

    Attributes:
        row: Row of the grid.
        column: Column of the grid; None for the part of the last short batch.
        slots: Slots; None where records are not counted (streamed).
        batches: Batches that they make; None as well.
        splits: The splits that hold them in the order of reading, int64.
        begin: Records of the first split that lie before the first slot.
        shards: Shards that the splits are of.
        nbytes: Bytes to be read.
    """

    row: int
    column: int | None
    slots: int | None
    batches: int | None
    splits: NDArray[np.int64]
    begin: int
    shards: int
    nbytes: int


@dataclass(frozen=True)
class Share:
    """What one worker of one rank reads in an epoch (`end="cycle"`: in a pass).

    Attributes:
        rank: The rank.
        worker: Number of the worker.
        pieces: Its lanes, and the parts of the last short batch where it makes that.
        shards: Shards that it reads from.
    """

    rank: int
    worker: int
    pieces: tuple[Piece, ...]
    shards: int

    @property
    def slots(self) -> int | None:
        """Slots; None where records are not counted."""
        return _sum([piece.slots for piece in self.pieces])

    @property
    def batches(self) -> int | None:
        """Batches that it makes; a rank's rows make them together. None where records are not counted."""
        return _sum(list({piece.column: piece.batches for piece in self.pieces}.values()))

    @property
    def splits(self) -> int:
        """Splits read; one that two lanes share counts twice."""
        return sum(len(piece.splits) for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        """Bytes to be read."""
        return sum(piece.nbytes for piece in self.pieces)


@dataclass(frozen=True)
class Report:
    """A plan in figures.

    Attributes:
        layout: Who runs.
        end: What happens at the end of an epoch.
        shares: What each worker reads, by rank and worker.
        needed: Bytes of all splits that have a slot, each once.
        records: Records of the data set; None where they are not counted.
        steps: Steps of each rank; None where they are not counted.
        padding: Records repeated so that all ranks' last batches are of one length; None where not counted.
        left_out: Records that `drop_last` leaves out; None where not counted.
        warnings: What to look out for, for people.
    """

    layout: Layout
    end: End
    shares: tuple[Share, ...]
    needed: int
    records: int | None
    steps: tuple[int, ...] | None
    padding: int | None
    left_out: int | None
    warnings: tuple[str, ...]

    @cached_property
    def nbytes(self) -> int:
        """Bytes to be read by all."""
        return sum(share.nbytes for share in self.shares)

    @property
    def amplification(self) -> float:
        """Bytes to be read over bytes needed; 1.0 where none are."""
        return self.nbytes / self.needed if self.needed else 1.0


def indexed(
    splits: IndexedSplits,
    layout: Layout,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = False,
    end: End = "even",
    drop_last: bool = False,
) -> Report:
    """The figures of an indexed plan.

    Args:
        splits: The splits with their counts.
        layout: Who runs.
        seed: The run's seed.
        epoch: The epoch.
        shuffle: Whether the order is permuted.
        end: What happens at the end of an epoch.
        drop_last: Whether the last short batch is left out.
    """
    grid = layout.grid
    plan = IndexedPlan(splits.records, grid, seed, epoch, shuffle)
    wire = np.concatenate(([0], np.cumsum(splits.wire[plan.splits])))
    tail = 0 if drop_last else plan.slots - plan.full * grid.batch

    def piece(row: int, column: int | None, start: int, slots: int, batches: int) -> Piece:
        held = plan.splits_between(start, start + slots)
        first = int(np.searchsorted(plan.offsets, start, side="right")) - 1
        begin = start - int(plan.offsets[first]) if slots else 0
        nbytes = int(wire[first + len(held)] - wire[first]) if slots else 0
        return Piece(row, column, slots, batches, held, begin, _distinct(splits.shard, held), nbytes)

    def pieces(rank: int, worker: int) -> list[Piece]:
        rows = grid.rows_of(rank, layout.world_size)
        found: list[Piece] = []
        for row in rows:
            for column in range(worker, grid.columns, layout.workers):
                lane = plan.lane(row, column)
                found.append(piece(row, column, lane.start, lane.length, lane.length // grid.share))
        if tail and plan.full % layout.workers == worker:
            for row in rows:
                slots = sum(map(len, plan.tail(row)))
                if slots or end != "exact":  # without slots it is all padding
                    first = int(plan.tail(row)[0].order[0]) if slots else 0
                    found.append(piece(row, None, first, slots, 1))
        return found

    shares = _shares(layout, splits.shard, pieces)
    used = splits.wire if not drop_last else splits.wire[plan.splits_between(0, plan.full * grid.batch)]
    steps = [plan.full] * layout.world_size
    if tail:
        for rank in range(layout.world_size):
            rows = grid.rows_of(rank, layout.world_size)
            steps[rank] += end != "exact" or any(plan.tail(row) for row in rows)
    report = Report(
        layout=layout,
        end=end,
        shares=shares,
        needed=int(used.sum()),
        records=plan.slots,
        steps=tuple(steps),
        padding=-tail % grid.rows if end != "exact" else 0,
        left_out=plan.slots - plan.full * grid.batch - tail,
        warnings=(),
    )
    return replace(report, warnings=(*advice.idle(layout), *advice.indexed(report, plan.full)))


def streamed(
    splits: StreamedSplits,
    layout: Layout,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = False,
    end: End = "exact",
) -> Report:
    """The figures of a streamed plan: its first pass where it is endless.

    Args:
        splits: The splits.
        layout: Who runs; one row a rank and one column a worker.
        seed: The run's seed.
        epoch: The epoch.
        shuffle: Whether splits are permuted.
        end: What happens at the end of an epoch.

    Raises:
        TopologyError: The grid is another, or `end` is `"even"`.
    """
    grid = layout.grid
    if end == "even":
        raise TopologyError(
            'end="even" needs records that are counted, which this format does not tell: say "exact" or "cycle".'
        )
    if (grid.rows, grid.columns) != (layout.world_size, max(1, layout.wanted)):
        raise TopologyError(
            f"This format does not tell its records, so lanes are one a rank and worker: "
            f"{layout.world_size},{max(1, layout.wanted)}, not {grid.rows},{grid.columns}."
        )
    plan = StreamedPlan(len(splits), grid.rows, grid.columns, seed, epoch, shuffle, end == "cycle")

    def pieces(rank: int, worker: int) -> list[Piece]:
        held = plan.lane(rank, worker)
        nbytes = int((splits.stop - splits.start)[held].sum())
        return [Piece(rank, worker, None, None, held, 0, _distinct(splits.shard, held), nbytes)]

    report = Report(
        layout=layout,
        end=end,
        shares=_shares(layout, splits.shard, pieces),
        needed=int((splits.stop - splits.start).sum()),
        records=None,
        steps=None,
        padding=None,
        left_out=None,
        warnings=(),
    )
    return replace(report, warnings=(*advice.idle(layout), *advice.streamed(report, len(splits))))


def _shares(layout: Layout, shard: NDArray[np.int64], pieces: Callable[[int, int], list[Piece]]) -> tuple[Share, ...]:
    shares = []
    for rank in range(layout.world_size):
        for worker in range(layout.workers):
            own = tuple(pieces(rank, worker))
            held = np.concatenate([piece.splits for piece in own])
            shares.append(Share(rank, worker, own, _distinct(shard, held)))
    return tuple(shares)


def _distinct(shard: NDArray[np.int64], splits: NDArray[np.int64]) -> int:
    return len(np.unique(shard[splits]))


def _sum(values: Sequence[int | None]) -> int | None:
    return None if any(value is None for value in values) else sum(value or 0 for value in values)
