"""What travels to a worker for a mixture: its sources' specs, and what decides which place takes which source.

Stands where the `Spec` of a data set does; how its batches are made is in `mixed.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamio.errors import StatusError
from streamio.loader.spec import Start
from streamio.plan import Grid, MixedPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamio.loader.spec import End, Spec
    from streamio.loader.state import State
    from streamio.plan import Stop
    from streamio.storage.shards import Shard


@dataclass(frozen=True)
class MixedSpec:
    """A mixture, settled: what travels to a worker. Stands where `Spec` does.

    Attributes:
        names: Names of the sources, sorted.
        sources: What each is, with a grid of the same lanes.
        weights: Share of records of each.
        mandatory: Numbers of the sources that each row of each batch holds.
        stop: What ends an epoch.
        grid: The lane grid of an epoch that begins now.
        rank: This rank.
        world_size: Number of ranks.
        seed: The run's seed.
        provenance: Whether records carry `__source__`.
        columnar: Whether columns are kept as such where all sources have the same.
        records: Whether they become records in the process that makes batches.
        unite: Whether columns of sources that have others become one batch, with nulls; else they become records.
    """

    names: tuple[str, ...]
    sources: tuple[Spec, ...]
    weights: tuple[float, ...]
    mandatory: tuple[int, ...]
    stop: Stop
    grid: Grid
    rank: int
    world_size: int
    seed: int
    provenance: bool
    columnar: bool = False
    records: bool = False
    unite: bool = False

    indexed = True

    @property
    def shards(self) -> list[Shard]:
        """The shards of all sources, one source's behind the other's."""
        return [shard for source in self.sources for shard in source.shards]

    @property
    def end(self) -> End:
        """What happens at the end of an epoch, in the words of a data set."""
        return "cycle" if self.stop == "cycle" else "even"

    @property
    def map(self) -> Callable[..., Any] | None:
        """A source's map; None where none has one."""
        return next((source.map for source in self.sources if source.map is not None), None)

    @property
    def record_bytes(self) -> float:
        """Decoded bytes of a record, at about."""
        each = [weight * source.record_bytes for weight, source in zip(self.weights, self.sources, strict=True)]
        return sum(each) / sum(self.weights)

    @property
    def rows(self) -> range:
        """Rows of the grid that this rank serves."""
        return self.grid.rows_of(self.rank, self.world_size)

    def at(self, start: Start) -> MixedSpec:
        """The same with the grid of an epoch that was begun."""
        if start.grid is None:
            return self
        grid = start.grid
        sources = tuple(replace(source, grid=lanes_of(grid)) for source in self.sources)
        return replace(self, grid=grid, sources=sources)

    def plan(self, start: Start) -> MixedPlan:
        """The plan of an epoch."""
        return MixedPlan(
            records=tuple(records_of(source) for source in self.sources),
            weights=self.weights,
            grid=start.grid or self.grid,
            mandatory=self.mandatory,
            stop=self.stop,
            seed=self.seed,
            epoch=start.epoch,
        )

    def steps(self, start: Start) -> int:
        """Global batches of an epoch; of an endless one, those before the first source comes to its end."""
        return self.plan(start).steps

    def batches(self, start: Start) -> int:
        """Batches of an epoch, the same on every rank."""
        return self.steps(start)

    def plan_inputs(self) -> dict[str, Any]:
        """What the plan is a function of, beside the shards and the place."""
        each = dict(zip(self.names, self.sources, strict=True))
        return {
            "kind": "mixture",
            "rows": self.grid.rows,
            "columns": self.grid.columns,
            "batch": self.grid.batch,
            "seed": {"": self.seed} | {name: source.seed for name, source in each.items()},
            "shuffle": {name: source.shuffle for name, source in each.items()},
            "window": {name: source.window for name, source in each.items()},
            "end": self.end,
            "drop_last": True,
            "on_drop": {name: source.on_drop for name, source in each.items()},
            "filters": {name: source.filters for name, source in each.items()},
            "max_records": {name: source.max_records for name, source in each.items()},
            "mixture": {
                "stop": self.stop,
                "weights": dict(zip(self.names, self.weights, strict=True)),
                "mandatory": [self.names[source] for source in self.mandatory],
            },
            "sources": {name: source.shards.digest[:16] for name, source in each.items()},
        }


def lanes_of(grid: Grid) -> Grid:
    """The grid of a source: the mixture's lanes, cut so evenly that they differ by one slot."""
    return Grid(grid.rows, grid.columns, grid.rows)


def records_of(source: Spec) -> int:
    """Slots of a source's pass."""
    return source.indexed_plan(Start(0)).slots


def goes_on(state: State, spec: MixedSpec, *, fixed: bool) -> Start:
    """Where the epoch of a mixture's state goes on, under the running topology.

    Args:
        state: The state.
        spec: The mixture.
        fixed: Whether the user has fixed the lanes.

    Raises:
        StatusError: The epoch was dealt to a grid that does not fit.
    """
    start, then, now = state.start, state.start.grid, spec.grid
    if then is None:  # nothing of the epoch has been delivered
        return replace(start, k=0)
    if state.plan.get("mixture") != spec.plan_inputs()["mixture"]:
        raise StatusError(
            f"The saved place does not fit this loader: it lies within epoch {start.epoch}, and stop, weights or "
            "mandatory sources of the mixture were others. They may change between epochs only (allow=['mixture']): "
            f"set_epoch({start.epoch + 1}) begins the next one."
        )
    same = not fixed or (then.rows, then.columns) == (now.rows, now.columns)
    if then.batch == now.batch and then.rows % spec.world_size == 0 and same:
        return start
    raise StatusError(
        f"The saved place does not fit this loader: epoch {start.epoch} of the mixture was dealt to {then.rows} rows "
        f"and {then.columns} columns of lanes in global batches of {then.batch}, and this is {now.rows}, {now.columns} "
        f"and {now.batch} on {spec.world_size} ranks. Within an epoch a mixture keeps its lanes: go on with "
        f"lanes=({then.rows}, {then.columns}), global_batch_size={then.batch} and a number of ranks that divides "
        f"{then.rows}."
    )
