"""What travels to a worker: everything that decides which bytes become which batch, as plain values.

All of it is settled in the parent; a worker derives its lanes from it and asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from streamio.checks import whole
from streamio.observe.drops import Drop
from streamio.plan import (
    Cursor,
    Generation,
    Grid,
    IndexedPlan,
    IndexedSplits,
    StreamedPlan,
    StreamedRest,
    StreamedSplits,
)

if TYPE_CHECKING:
    from streamio.formats.base import Format
    from streamio.loader.chunk import Values
    from streamio.partitions import Partitions
    from streamio.storage.reader import ReadSettings
    from streamio.storage.shards import ShardList

End: TypeAlias = Literal["even", "exact", "cycle"]
OnDrop: TypeAlias = Literal["refill", "short"]


@dataclass(frozen=True)
class Spec:
    """A data set, settled: what to read, in which order, and what to make of it.

    Attributes:
        shards: The listed shards.
        splits: Their splits; the class tells the kind of plan.
        format: How to decode them.
        read: How to read them.
        grid: The lane grid of an epoch that begins now.
        rank: This rank.
        world_size: Number of ranks.
        seed: The run's seed.
        shuffle: Whether the order is permuted.
        window: Slots that are permuted together.
        window_bytes: Bytes at which a streamed window is closed early.
        end: What happens at the end of an epoch.
        drop_last: Whether short batches are left out.
        on_drop: What becomes of a dropped record's slot.
        map: The user's function on records.
        provenance: Whether records carry `__shard__` and `__index__`.
        columnar: Whether columns are kept as such where the format has them.
        records: Whether they become records in the process that makes batches.
        partitions: What URLs tell of their records.
        filters: What the user filters by, as text.
        max_records: Records that are taken, the first ones; None for all.
        most_drops: Drops that the run bears, where that is a count.
    """

    shards: ShardList
    splits: IndexedSplits | StreamedSplits
    format: Format
    read: ReadSettings
    grid: Grid
    rank: int
    world_size: int
    seed: int
    shuffle: bool
    window: int
    window_bytes: int
    end: End
    drop_last: bool
    on_drop: OnDrop
    map: Callable[..., Any] | None
    provenance: bool
    columnar: bool = False
    records: bool = False
    partitions: Partitions | None = None
    filters: str | None = None
    max_records: int | None = None
    most_drops: int | None = None

    def url(self, split: int) -> str:
        """The URL of a split's shard."""
        return self.shards[int(self.splits.shard[split])].url

    @property
    def record_bytes(self) -> float:
        """Decoded bytes of a record, at about; 0 where that is not known."""
        return self.splits.record_bytes if isinstance(self.splits, IndexedSplits) else 0.0

    @property
    def indexed(self) -> bool:
        """Whether record counts are known."""
        return isinstance(self.splits, IndexedSplits)

    @property
    def rows(self) -> range:
        """Rows of the grid that this rank serves."""
        return self.grid.rows_of(self.rank, self.world_size)

    def at(self, start: Start) -> Spec:
        """The same with the grid of an epoch that was begun."""
        return self if start.grid is None else replace(self, grid=start.grid)

    def indexed_plan(self, start: Start, turn: int = 0) -> IndexedPlan:
        """The plan of a pass over an indexed data set.

        Args:
            start: Where the iteration begins.
            turn: Number of the pass, from that of `start` on: only this one was begun under other grids.
        """
        assert isinstance(self.splits, IndexedSplits)
        return IndexedPlan(
            records=self.splits.records,
            grid=start.grid or self.grid,
            seed=self.seed,
            epoch=start.epoch,
            shuffle=self.shuffle,
            window=self.window,
            turn=start.turn + turn,
            past=start.past if not turn else (),
        )

    def streamed_plan(self, start: Start) -> StreamedPlan:
        """The plan of an epoch over a streamed data set."""
        grid, share = start.grid or self.grid, self.end == "cycle"
        return StreamedPlan(
            len(self.splits), grid.rows, grid.columns, self.seed, start.epoch, self.shuffle, share, start.rest
        )

    def steps(self, start: Start, turn: int = 0) -> int:
        """Global batches of a pass over an indexed data set; of one begun under other grids, what was left of it."""
        plan = self.indexed_plan(start, turn)
        return plan.full if self.drop_last else plan.steps

    def batches(self, start: Start) -> int:
        """Batches of an indexed epoch that this rank is given: without a share of the last one, it has none of it."""
        plan = self.indexed_plan(start)
        short = plan.steps > plan.full and not self.drop_last
        if short and self.end == "exact":
            short = any(plan.tail(row) for row in self.at(start).rows)
        return plan.full + short + sum(generation.k for generation in start.past)


@dataclass
class Made:
    """One batch of this rank before it is collated, and what there is to tell about it.

    Attributes:
        values: The records, mapped; or columns.
        drops: Places whose slots fell out of this batch.
        refilled: Values that stand in for dropped ones.
        padded: Values that stand where no slot is left.
        sources: Records of each source (mixtures).
        cursor: Where the lane stands behind this batch (streamed), as JSON-ready values.
        ended: The lane had nothing left: there is no batch.
        more: The lane has not come to a good record yet; what was dropped until here is told (streamed).
    """

    values: Values = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    refilled: int = 0
    padded: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    cursor: Any = None
    ended: bool = False
    more: bool = False


@dataclass(frozen=True)
class Start:
    """Where an iteration begins.

    Attributes:
        epoch: The epoch.
        k: Global batches of it that have been delivered under its grid.
        grid: The grid; None for that of an epoch that begins now.
        past: Grids that parts of its pass were delivered under before, and how much (indexed).
        turn: Number of the pass that `past` speaks of (`end="cycle"`).
        rest: What was left where the grid changed last (streamed).
        left_out: URLs of shards whose records are left out from here on.
        cursors: Cursor of each of this rank's lanes by column (streamed).
        ended: Columns whose lane has nothing left (streamed).
        column: The column that is next (streamed).
    """

    epoch: int
    k: int = 0
    grid: Grid | None = None
    past: tuple[Generation, ...] = ()
    turn: int = 0
    rest: StreamedRest | None = None
    left_out: tuple[str, ...] = ()
    cursors: tuple[Cursor, ...] = ()
    ended: frozenset[int] = frozenset()
    column: int = 0

    @property
    def begun(self) -> bool:
        """Whether anything of the epoch has been delivered."""
        places = any(cursor != Cursor() for cursor in self.cursors)
        return bool(self.k or self.past or self.turn or self.rest or self.ended or places)


def checked_epoch(epoch: int) -> int:
    """The number of an epoch as an int, of whatever integer type it came.

    Raises:
        TypeError: It is no int.
        ValueError: It is below 0.
    """
    return whole("epoch", epoch, 0)
