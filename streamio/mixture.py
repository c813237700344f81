"""Mixture: several data sets as one, their records in shares that the user names.

Checks the user's options and settles the sources; which record comes where is decided in `plan/mixing.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

from streamio.checks import checked_lanes, checked_max_drops, flags, kind, names, one_of, real, whole
from streamio.dataset import StreamingDataset
from streamio.distributed import DistributedIterableDataset
from streamio.errors import FormatError, TopologyError
from streamio.loader.mixed_spec import MixedSpec, lanes_of, records_of
from streamio.loader.spec import Start, checked_epoch
from streamio.observe.stats import IoCounts
from streamio.plan import Grid, IndexedSplits, Stop

if TYPE_CHECKING:
    from streamio.group import Group
    from streamio.observe.drops import Drop
    from streamio.storage.shards import ShardList
    from streamio.topology import Topology

logger = logging.getLogger(__name__)

#: What a source's data set must not say itself, with the values that say nothing.
_OF_THE_MIXTURE = {
    "end": None,
    "lanes": None,
    "max_drops": None,
    "on_topology_change": "deal",
    "on_change": "error",
}


@dataclass(frozen=True)
class SettledMixture:
    """A mixture with nothing left to find out about its sources.

    Attributes:
        topology: Whose part this process reads.
        shards: The shards of all sources.
        drops: Shards that could not be opened.
        run: A random name, the same on all ranks, for a run that begins here.
        io: What this rank read to settle it.
    """

    topology: Topology
    shards: ShardList
    drops: tuple[Drop, ...]
    run: str
    io: IoCounts


class Mixture(DistributedIterableDataset):
    """Records of several data sets, dealt to the places of each batch by weight. Goes into a `streamio.DataLoader`.

    Which source a place takes is a function of (seed, epoch, lane, place), and each source is read in an order of its
    own. So the sequence of global batches is the same on every topology that fits, and a place in the run is an epoch
    and a batch number.

    Args:
        sources: The data sets by name; each of a format that tells its record counts, or with an index. They must not
            say what the mixture says: `end`, `lanes`, `max_drops`, `on_topology_change`, `on_change`.
        weights: Share of records that each is to have, by name and in any unit. Default: in proportion to the records
            that each holds.
        stop: `"first_exhausted"`: the epoch ends before a source would have to begin again. `"all_exhausted"`: it ends
            when each has been read to its end, the others over and over in new orders. `"cycle"`: endless.
        mandatory: Names of sources that each rank's batch holds at least one record of; their shares rise where their
            weights come to less than that.
        seed: Decides which place takes which source. The data sets' own seeds decide their orders.
        provenance: Whether records carry the name of their source as `__source__`.
        max_drops: Dropped records that the run bears, as for a data set.
        lanes: Rows and columns of the lane grid, as for a data set. An epoch goes on under its grid alone.
        name: Stands in log messages.

    Raises:
        TypeError: A source that is no `StreamingDataset`, or an option of a wrong type, named.
        ValueError: An option that can't be, named.
    """

    #: A mixture's place is taken up under a grid that fits, or not at all.
    on_topology_change = "raise"

    #: Windows that the user asked for stand in the sources.
    window = None

    def __init__(
        self,
        sources: Mapping[str, StreamingDataset],
        *,
        weights: Mapping[str, float] | None = None,
        stop: Stop = "first_exhausted",
        mandatory: Sequence[str] = (),
        seed: int = 0,
        provenance: bool = False,
        max_drops: int | float | None = None,
        lanes: tuple[int, int] | None = None,
        name: str = "mixture",
    ) -> None:
        kind("name", name, str, "text")
        super().__init__(name, num_workers=0)
        self.sources = _checked_sources(sources)
        if weights is not None:
            _check_weights(weights, self.sources)
        one_of("stop", stop, get_args(Stop))
        mandatory = names("mandatory", mandatory, empty=True)
        unknown = [each for each in mandatory if each not in self.sources]
        if unknown:
            raise ValueError(f"mandatory names {unknown}, and the sources are {[*self.sources]}.")
        flags(provenance=provenance)
        self.weights = None if weights is None else {each: float(weights[each]) for each in self.sources}
        self.stop: Stop = stop
        self.mandatory = tuple(each for each in self.sources if each in mandatory)
        self.seed = whole("seed", seed)
        self.provenance = provenance
        self.max_drops = checked_max_drops(max_drops)
        self.lanes = checked_lanes(lanes)
        self.epoch = 0
        self._settled: SettledMixture | None = None

    def set_epoch(self, epoch: int = 0) -> None:  # the base class calls it a seed
        """Choose the epoch that the next iterator reads, from 0 on. With a loader call the loader's."""
        self.epoch = checked_epoch(epoch)

    def get_data_paths(self, *args: Any, **kwargs: Any) -> Sequence[str]:
        """URLs of all shards of all sources, sorted."""
        return [shard.url for shard in self.prepare().shards]

    def prepare(self) -> SettledMixture:
        """Settle topology, listings and counts of all sources now; later calls return at once.

        All ranks of a process group call it together.

        Raises:
            FormatError: A source does not tell its record counts.
            TopologyError: Sources with different ranks.
            StreamioError: As for a data set.
        """
        if self._settled is not None:
            return self._settled
        from streamio.storage.shards import ShardList

        settled = {name: source.prepare() for name, source in self.sources.items()}
        first = next(iter(settled.values()))
        for name, each in settled.items():
            if not isinstance(each.splits, IndexedSplits):
                raise FormatError(
                    f"Source {name!r} of the mixture: {each.format.name} shards do not tell how many records they "
                    f"hold, and a mixture deals by counts. {each.uncounted}"
                )
            if each.topology != first.topology:
                raise TopologyError(
                    f"Source {name!r} of the mixture is read by rank {each.topology.rank} of "
                    f"{each.topology.world_size}, and another one by rank {first.topology.rank} of "
                    f"{first.topology.world_size}: give all the same topology."
                )
        self._settled = SettledMixture(
            topology=first.topology,
            shards=ShardList.of(chain.from_iterable(each.shards for each in settled.values())),
            drops=tuple(drop for each in settled.values() for drop in each.drops),
            run=first.run,
            io=sum((each.io for each in settled.values()), IoCounts()),
        )
        return self._settled

    @property
    def is_prepared(self) -> bool:
        """Whether everything has been settled."""
        return self._settled is not None

    @property
    def topology(self) -> Topology:
        """Whose part this process reads; asked for anew until the mixture is prepared."""
        return self._settled.topology if self._settled else self._first.topology

    @property
    def group(self) -> Group:
        """The ranks that act together."""
        return self._first.group

    def grid(self, batch: int, workers: int) -> Grid:
        """The lane grid of an epoch that begins now.

        Args:
            batch: Global batch size.
            workers: Workers of this rank.

        Raises:
            TopologyError: `lanes` does not fit ranks, workers and batch, or the ranks can't share the batch.
        """
        return Grid.of(self.lanes, batch, world_size=self.topology.world_size, workers=workers)

    def spec(self, grid: Grid, *, drop_last: bool = True, window: Mapping[str, int] | None = None) -> MixedSpec:
        """Everything that a worker needs to make batches.

        Args:
            grid: The lane grid of an epoch that begins now.
            drop_last: Without effect: batches of a mixture are whole.
            window: The windows of a run that is resumed, by source.

        Raises:
            TopologyError: A source has too few records for the lanes, or a batch too few places for what is mandatory.
        """
        settled = self.prepare()
        windows = {name: source.window or (window or {}).get(name) for name, source in self.sources.items()}
        most = self.max_drops if isinstance(self.max_drops, int) else None
        specs = {
            name: replace(source.spec(lanes_of(grid), drop_last=True, window=windows[name]), most_drops=most)
            for name, source in self.sources.items()
        }
        weights = self.weights or {name: float(records_of(each)) for name, each in specs.items()}
        spec = MixedSpec(
            names=tuple(specs),
            sources=tuple(specs.values()),
            weights=tuple(weights.values()),
            mandatory=tuple(number for number, name in enumerate(self.sources) if name in self.mandatory),
            stop=self.stop,
            grid=grid,
            rank=settled.topology.rank,
            world_size=settled.topology.world_size,
            seed=self.seed,
            provenance=self.provenance,
        )
        self._check(spec, grid)
        return spec

    def log_drop(self, drop: Drop) -> None:
        """Count and log a drop as the base contract has it; what `filters=` leaves out is none."""
        if drop.fault:
            where = f"{drop.url} at {drop.position}" if drop.position else drop.url
            self._log_drop(drop.reason, "%s: %s", where, drop.message)

    def __iter__(self) -> Iterator[Any]:
        """A mixture is delivered by a `streamio.DataLoader` alone."""
        raise TypeError("A Mixture goes into streamio.DataLoader; torch's own loader can't deliver it.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.sources)}, stop={self.stop!r}, seed={self.seed})"

    @property
    def _first(self) -> StreamingDataset:
        return next(iter(self.sources.values()))

    def _check(self, spec: MixedSpec, grid: Grid) -> None:
        """Refuse what can't be dealt, and tell what is dealt otherwise than asked for."""
        names, share = spec.names, grid.share
        if len(spec.mandatory) > share or (len(spec.mandatory) == share and len(names) > share):
            raise TopologyError(
                f"{self.dataset_name}: mandatory names {len(spec.mandatory)} of {len(names)} sources, and each row of "
                f"lanes gives {share} records to a batch: use a larger batch, or fewer rows (lanes=)."
            )
        plan = spec.plan(Start(0))
        for number, name in enumerate(names):
            if not plan.lane_length(number, grid.columns - 1):
                raise TopologyError(
                    f"{self.dataset_name}: source {name!r} has {plan.records[number]} records for {grid.rows} x "
                    f"{grid.columns} lanes, and each lane needs one at least. Use fewer ranks or workers."
                )
        if not plan.steps and self.stop != "cycle":
            records = dict(zip(names, plan.records, strict=True))
            raise TopologyError(
                f"{self.dataset_name}: a source comes to its end before the first batches are full: {records} records "
                f"in {grid.rows} x {grid.columns} lanes, in batches of {grid.batch}. Use smaller batches, fewer ranks "
                'or workers, or stop="all_exhausted".'
            )
        for number in plan.raised:
            logger.warning(
                "%s: source %r is mandatory, and its weight comes to less than a record a batch and rank: its share is "
                "%.3g in place of %.3g.",
                self.dataset_name, names[number], plan.shares[number], spec.weights[number] / sum(spec.weights),
            )  # fmt: skip
        left_out = {name: plan.left_out(number) for number, name in enumerate(names) if plan.left_out(number)}
        if left_out:
            logger.info(
                "%s: %s records of a pass can't be shared by the rows and are left out.", self.dataset_name, left_out
            )


def _checked_sources(sources: Mapping[str, StreamingDataset]) -> dict[str, StreamingDataset]:
    """The sources in the order of their names, so that the order in which they were given decides nothing."""
    kind("sources", sources, Mapping, "a mapping of names to data sets")
    if not sources:
        raise ValueError("sources must be a mapping of names to data sets, with one at least.")
    for name, source in sources.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"sources has the key {name!r}: names are text.")
        if not isinstance(source, StreamingDataset):
            raise TypeError(f"Source {name!r} is a {type(source).__name__}; a mixture is made of StreamingDatasets.")
        for option, silent in _OF_THE_MIXTURE.items():
            value = getattr(source, option)
            if value != silent:
                told = {"end": "its stop= decides", "lanes": "give it lanes=", "max_drops": "give it max_drops="}
                raise ValueError(
                    f"Source {name!r} has {option}={value!r}, which is the mixture's to say: "
                    f"{told.get(option, 'it has no such option')}."
                )
    return dict(sorted(sources.items()))


def _check_weights(weights: Mapping[str, float], sources: Mapping[str, StreamingDataset]) -> None:
    kind("weights", weights, Mapping, "a mapping of names to numbers")
    if {*weights} != {*sources}:
        raise ValueError(f"weights are of {[*weights]}, and the sources are {[*sources]}: give each its weight.")
    for name, weight in weights.items():
        real(f"weights[{name!r}]", weight, hint="; leave a source out to read none of it")
