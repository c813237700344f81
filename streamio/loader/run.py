"""What a loader reads and where it stands: the spec of its run, and states of the run that are told or taken up.

Settles with all ranks; workers and iterators are the loader's own business.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamio.dataset import StreamingDataset
from streamio.errors import StatusError, TooManyDropsError, TopologyError
from streamio.loader.generations import taken_up, taken_up_streamed
from streamio.loader.ledger import Ledger
from streamio.loader.mixed_spec import MixedSpec, goes_on
from streamio.loader.position import Position
from streamio.loader.spec import Spec, Start
from streamio.loader.state import Loaded, State, plan_inputs
from streamio.loader.steering import moved_on
from streamio.plan import START
from streamio.settle import Settled
from streamio.storage.faults import shown
from streamio.storage.urls import normalise

if TYPE_CHECKING:
    from streamio.loader.server import Serving
    from streamio.mixture import Mixture, SettledMixture
    from streamio.storage.shards import ShardList

logger = logging.getLogger(__name__)

#: Bytes of a record below which Python objects cost more than the copying of bytes.
SMALL_RECORD = 4096


@dataclass(frozen=True)
class Shape:
    """What of a loader's options a run depends on.

    Attributes:
        batch_size: Records per rank and batch; None where they are delivered one by one.
        global_batch: Records per batch over all ranks, in its place; None where it holds.
        workers: Worker processes.
        drop_last: Whether the short last batch is left out.
        serving: What batches are.
    """

    batch_size: int | None
    global_batch: int | None
    workers: int
    drop_last: bool
    serving: Serving

    def batch(self, world_size: int) -> int:
        """The global batch size."""
        return self.global_batch or (self.batch_size or 1) * world_size


class Run:
    """The run of one loader.

    Args:
        dataset: What it reads.
        shape: How.

    Attributes:
        position: Where it stands.
        ledger: What was delivered and dropped.

    Raises:
        TopologyError: The data set's lanes do not fit.
    """

    def __init__(self, dataset: StreamingDataset | Mixture, shape: Shape) -> None:
        self._dataset = dataset
        self._shape = shape
        self.position = Position(Start(dataset.epoch))
        self.ledger = Ledger(dataset.max_drops, dataset.log_drop)
        self._dataset_epoch = dataset.epoch
        self._spec: Spec | MixedSpec | None = None
        self._settled: Settled | SettledMixture | None = None  # what the spec was made of; others may list anew
        self._unchecked: Loaded | None = None
        self._before = self.position
        self._footers_counted = self._io_counted = False
        self._before_epoch = (0, 0, False)  # delivered and dropped when an iterator began; whether an epoch did
        self._counted: tuple[Start, int] | None = None
        self._listed_for: int | None = None
        self._window: Any = None  # of the run, where the data are listed anew
        if dataset.lanes is not None:
            dataset.grid(shape.batch(dataset.topology.world_size), max(1, shape.workers))

    def settle(self) -> Spec | MixedSpec:
        """The spec for the options and the topology, made once; an armed state is checked against it."""
        if self._spec is not None:
            return self._spec
        dataset, shape = self._dataset, self._shape
        settled = self._settled or dataset.prepare()
        batch = shape.batch(settled.topology.world_size)
        loaded = self._unchecked
        window = loaded.window if loaded is not None else self._window
        grid = dataset.grid(batch, max(1, shape.workers))
        spec: Spec | MixedSpec
        if isinstance(settled, Settled):
            assert isinstance(dataset, StreamingDataset)
            spec = dataset.spec(grid, drop_last=shape.drop_last, window=window, settled=settled)
        else:
            spec = dataset.spec(grid, drop_last=shape.drop_last, window=window)
        records = spec.map is not None or (shape.serving.output == "records" and not shape.workers)
        spec = replace(spec, columnar=self._columnar(spec), records=records)
        if isinstance(spec, MixedSpec):
            spec = replace(spec, unite=shape.serving.output != "records")
        elif spec.indexed and not spec.steps(Start(0)):
            slots = spec.indexed_plan(Start(0)).slots
            raise TopologyError(
                f"drop_last=True leaves nothing: {slots} records are fewer than a global batch of {batch}."
            )
        if loaded is not None:
            self._unchecked = None
            try:
                loaded.check(spec, dataset.window, settled.shards.digest)
                self.position.go_on(self._taken_up(loaded.state, spec))
            except StatusError:
                self.position = self._before
                raise
        elif self.position.run is None and settled.topology.rank == 0 and not self._footers_counted:
            self._footers_counted = True  # by one rank for all, and not again in a run that is taken up
            self.ledger.add_drops(settled.drops)
        self._spec, self._settled = spec, settled
        if not self._io_counted:
            self._io_counted = True
            self.ledger.add_io(settled.io)
        if not dataset.group.alone and spec.end == "exact":
            logger.warning(
                'end="exact" on %d ranks: they may end at different steps; don\'t wait for each other in the loop.',
                settled.topology.world_size,
            )
        return spec

    def begin(self) -> tuple[Spec | MixedSpec, Start]:
        """Let an iterator begin, while none delivers.

        Returns:
            What it reads, newly listed where that is wanted, and where it begins.
        """
        spec, now = self.settle(), self.now(running=False)
        if self._listed_for != now.epoch and not now.begun:
            spec = self._settle_anew(spec)
        self._listed_for = now.epoch
        told = self.position.told
        if told is not None and told.epoch != now.epoch:  # a place at the end of its epoch
            self.position.told = None
        start = self.position.begin(Start(now.epoch))
        if not spec.indexed and not start.cursors:
            start = replace(start, cursors=(START,) * spec.at(start).grid.columns)
        fresh = not start.k and not start.past and start.rest is None
        self._before_epoch = (self.ledger.delivered, self.ledger.drops.total, fresh)
        return spec, start

    def finished(self) -> None:
        """The epoch is over: the next one is up.

        Raises:
            TooManyDropsError: All that this rank alone read of it was dropped.
        """
        place = self.position.place
        delivered, dropped, whole = self._before_epoch
        dropped = self.ledger.drops.total - dropped
        nothing = whole and self.ledger.delivered == delivered
        if nothing and dropped and not self._shape.drop_last:  # which may have left out the good ones
            told = f"Epoch {place.epoch} had not one good record: {dropped} were dropped. The worst places: "
            told += f"{self.ledger.drops.worst()}. `streamio cat` on these shards shows what they hold."
            if self._dataset.group.alone and self._dataset.topology.world_size == 1:
                raise TooManyDropsError(told)
            logger.warning("On this rank: %s", told)
        self.position.place = Start(place.epoch + 1)

    def now(self, *, running: bool) -> Start:
        """Where the run stands; the end of an epoch is the beginning of the next.

        Args:
            running: Whether an iterator still delivers.
        """
        if self._dataset.epoch != self._dataset_epoch:  # somebody chose by the data set
            self._dataset_epoch = self._dataset.epoch
            self.position.choose(self._dataset.epoch, running=running)
        now, spec = self.position.now(running=running), self._spec
        if spec is not None and spec.indexed and spec.end != "cycle" and now.begun and now.k >= self.steps(spec, now):
            return Start(now.epoch + 1)
        return now

    def steps(self, spec: Spec | MixedSpec, start: Start) -> int:
        """Global batches that an epoch has under its grid; noted, for a chain of grids takes time to follow."""
        place = replace(start, k=0)
        if self._counted is None or self._counted[0] != place:
            self._counted = place, spec.steps(place)
        return self._counted[1]

    @property
    def shards(self) -> ShardList:
        """The shards that it reads."""
        return (self._settled or self._dataset.prepare()).shards

    def state(self, *, running: bool) -> State:
        """The place behind the last batch delivered."""
        now, position = self.now(running=running), self.position
        if not self._dataset.is_prepared:  # nothing was delivered; to settle now would be a call to other ranks
            if self._unchecked is not None:
                return replace(self._unchecked.state, start=now)
            return State(position.run or "", position.step, now, {}, "", 0, self._dataset.topology.rank)
        spec = self.settle()
        settled = self._settled or self._dataset.prepare()
        if not spec.indexed and not now.cursors:
            now = replace(now, cursors=(START,) * spec.at(now).grid.columns)
        return State(
            run=position.run or settled.run,
            step=position.step,
            start=now,
            plan=plan_inputs(spec.at(now)),
            digest=settled.shards.digest,
            shards=len(settled.shards),
            rank=settled.topology.rank,
            left_out=position.left_out,
        )

    def adopt(self, state: State, allow: Collection[str], difference: str, shards: ShardList | None) -> None:
        """Let the next iterator begin at a state; see `DataLoader.adopt`."""
        dataset, before = self._dataset, (self._settled, self._window)
        settled = None
        if shards is not None and isinstance(dataset, StreamingDataset):
            settled = dataset.settled_anew(dataset.prepare(), shards)
        if isinstance(dataset, StreamingDataset) and dataset.on_change != "error" and not state.start.begun:
            allow = {*allow, "data"}
        if self._unchecked is None:  # else the position is one that was not checked either
            self._before = replace(self.position)
        self._spec, self._counted, self._settled = None, None, settled  # the state's window and shards may be others
        self._unchecked, self._window = Loaded(state, frozenset(allow), difference), None
        if state.start.begun:
            self._listed_for = state.start.epoch
        self.position.load(state.start, state.run or None, state.step)
        self.position.left_out = state.left_out
        if not dataset.is_prepared:
            return
        try:
            self.settle()
        except StatusError:
            self._settled, self._window = before
            raise

    def skip(self, now: Start, step: int) -> None:
        """Let the next iterator begin at a later step; see `DataLoader.skip_to`."""
        spec, count = self._counted_spec("skip_to"), step - self.position.step
        if count < 0:
            raise ValueError(
                f"step={step} lies behind: the run is at step {self.position.step}. Resume from a checkpoint before it."
            )
        place = moved_on(now, count, None if spec.end == "cycle" else spec.steps)
        self.position.load(place, self.position.run, step)

    def leave_out(self, now: Start, urls: Collection[str]) -> None:
        """Let the next iterator go on without some shards; see `DataLoader.leave_out`."""
        spec = self._counted_spec("leave_out")
        names = {shown(normalise(url)) for url in urls}
        missing = names - {shown(shard.url) for shard in spec.shards}
        if missing:
            raise ValueError(f"{min(missing)} is none of the {len(spec.shards)} shards of this data set.")
        self.position.load(now, self.position.run, self.position.step)
        self.position.left_out = tuple(sorted({*self.position.left_out, *names}))

    def _counted_spec(self, what: str) -> Spec:
        spec = self.settle()
        if not isinstance(spec, Spec) or not spec.indexed:
            raise TypeError(f"{what} takes one data set whose records are counted: parquet, Arrow, or with an index.")
        return spec

    def _settle_anew(self, spec: Spec | MixedSpec) -> Spec | MixedSpec:
        """The spec of an epoch that begins, with the data that are there now where that is wanted."""
        dataset = self._dataset
        if self._listed_for is None or not isinstance(spec, Spec) or not isinstance(dataset, StreamingDataset):
            return spec
        if dataset.on_change == "error":
            return spec
        before = self._settled
        assert isinstance(before, Settled)
        self._settled = after = dataset.settled_anew(before)
        self._spec = self._counted = None
        self._window = spec.window  # of the run
        if not after.topology.rank:
            self.ledger.add_drops(drop for drop in after.drops if drop not in before.drops)
        return self.settle()

    def _taken_up(self, state: State, spec: Spec | MixedSpec) -> Start:
        """Where a state goes on under the running topology."""
        fixed = self._dataset.lanes is not None
        if not state.plan:
            return state.start
        if isinstance(spec, MixedSpec):
            return goes_on(state, spec, fixed=fixed)
        refuse = self._dataset.on_topology_change == "raise"
        if not spec.indexed:
            return taken_up_streamed(state, spec, refuse=refuse)
        return taken_up(state, spec, fixed=fixed, refuse=refuse)

    def _columnar(self, spec: Spec | MixedSpec) -> bool:
        """Whether columns are kept as long as can be: where they are wanted, travel between processes, or are small."""
        if spec.record_bytes < SMALL_RECORD:  # records are made and let go of by one thread, while in its cache
            return True
        serving = self._shape.serving
        if spec.map is not None or not serving.batched:
            return False
        return serving.output != "records" or (self._shape.workers > 0 and serving.collate is None)
