"""DataLoader: torch's own, with a place in the run that can be saved and taken up again.

Settles everything global in this process, hands out batch numbers to workers, and notes what was delivered.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, get_args

import torch
import torch.utils.data

from streamio.checks import flags, kind, one_of, real, whole, whole_or_none
from streamio.dataset import StreamingDataset
from streamio.errors import GroupError, StatusError
from streamio.loader.iterator import LoaderIterator
from streamio.loader.mixed import work_of
from streamio.loader.mixed_spec import MixedSpec
from streamio.loader.output import Output, to_batch
from streamio.loader.pool import InProcess, Pool, Processes, start_context
from streamio.loader.restart import Restarts, WorkerDiedError
from streamio.loader.run import Run, Shape
from streamio.loader.schedule import ByNumber, ByTurns, Schedule
from streamio.loader.server import Answer, Serving
from streamio.loader.spec import Spec, Start
from streamio.loader.state import State, check_allowed
from streamio.loader.torch_private import accelerated, pin
from streamio.loader.worker import WorkerArguments
from streamio.mixture import Mixture
from streamio.observe.stats import Stats
from streamio.plan import Grid, generator
from streamio.together import shared

if TYPE_CHECKING:
    from streamio.storage.shards import ShardList

logger = logging.getLogger(__name__)

#: Records that one request asks for where they are delivered one by one.
RECORDS_AT_ONCE = 64


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Delivers the batches of a `StreamingDataset`, or of a `Mixture` of several.

    Args:
        dataset: The data set, or the mixture.
        batch_size: Records per rank and batch. None delivers records one by one.
        global_batch_size: Records per batch over all ranks, in place of `batch_size`.
        num_workers: Worker processes; 0 makes batches in this process, read ahead in threads.
        output: What a batch is: `"records"`: a list of dicts. `"columns"`: a dict of columns, numpy arrays where they
            are numbers, else lists. `"arrow"`: a `pyarrow.RecordBatch`. `"torch"`: as columns, with tensors for arrays.
        collate_fn: Applied to each batch where it is made. Default: the batch as it is.
        threads: Threads that run `map` ahead, and one more for `collate_fn`; 0 runs them where batches are made: in
            the training loop's own thread with `num_workers=0`. Order is kept; `map` must bear being called in several
            threads at once.
        drop_last: Whether the short last batch is left out.
        pin_memory: Whether tensors are put into page-locked memory, where there is an accelerator.
        timeout: Seconds to wait for a worker's batch; 0 waits as long as the worker lives.
        worker_init_fn: Called in each worker with its number.
        multiprocessing_context: How workers are started. Default: fork while that is safe, else forkserver.
        generator: Source of the workers' base seed.
        prefetch_factor: Batches that each worker makes ahead. Default 2.
        persistent_workers: Whether workers live on between epochs.
        restart_workers: How often in an epoch all workers may be started anew, behind the last batch delivered, because
            one was killed or ended by itself. Default 3; 0 makes each death a `WorkerError`.

    Raises:
        TopologyError: A global batch size that the ranks can't share.
        TypeError: An option of a wrong type, named.
        ValueError: An option that can't be, named; and as torch's own DataLoader.
    """

    dataset: StreamingDataset | Mixture

    #: Accelerate's `prepare` would wrap the loader and shard its stream a second time: with this it is left alone.
    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: StreamingDataset | Mixture,
        batch_size: int | None = 1,
        *,
        global_batch_size: int | None = None,
        num_workers: int = 0,
        output: Output = "records",
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        threads: int = 0,
        restart_workers: int = 3,
    ) -> None:
        if not isinstance(dataset, (StreamingDataset, Mixture)):
            raise TypeError(
                f"dataset is a {type(dataset).__name__}; streamio.DataLoader delivers a StreamingDataset or a Mixture. "
                "Other data sets, those of the base contract too, go into torch.utils.data.DataLoader."
            )
        batch_size = whole_or_none("batch_size", batch_size, 1)
        global_batch_size = whole_or_none("global_batch_size", global_batch_size, 1)
        num_workers = whole("num_workers", num_workers, 0)
        threads = whole("threads", threads, 0)
        restart_workers = whole("restart_workers", restart_workers, 0)
        flags(drop_last=drop_last, pin_memory=pin_memory, persistent_workers=persistent_workers)
        kind("collate_fn", collate_fn, Callable, "a function of a batch")
        kind("worker_init_fn", worker_init_fn, Callable, "a function of a worker's number")
        kind("generator", generator, torch.Generator, "a torch.Generator")
        one_of("output", output, get_args(Output))
        if global_batch_size is not None:
            if batch_size not in (1, None):
                raise ValueError(
                    f"batch_size={batch_size} and global_batch_size={global_batch_size} say the same: give one."
                )
            batch_size = global_batch_size
        if output != "records" and batch_size is None:
            raise ValueError(f"output={output!r} makes batches, and batch_size=None delivers records one by one.")
        super().__init__(
            dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            drop_last=drop_last,
            pin_memory=pin_memory,
            timeout=real("timeout", timeout, zero=True),
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=whole_or_none("prefetch_factor", prefetch_factor, 1),
            persistent_workers=persistent_workers,
        )
        self._serving = Serving(batch_size is not None, output, collate_fn, threads)
        self._run = Run(dataset, Shape(batch_size, global_batch_size, num_workers, drop_last, self._serving))
        #: What was delivered and dropped.
        self.ledger = self._run.ledger
        self._pool: Pool | None = None  # that lives on, and what it was made for
        self._made_for: Spec | MixedSpec | None = None
        self._seed = 0
        self.restart_workers = restart_workers
        self._restarts = Restarts(restart_workers)
        self._active: weakref.ref[LoaderIterator] | None = None
        self._warned_of: Grid | None = None

    # Where the run stands

    @property
    def epoch(self) -> int:
        """The epoch that is being delivered; between iterators, the one that the next begins or goes on with."""
        return self._run.position.place.epoch if self._running else self._now().epoch

    @property
    def step(self) -> int:
        """Batches delivered since the run began, over all epochs."""
        return self._run.position.step

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator reads.

        A place in that epoch that has been loaded is kept; one in another epoch is given up with a warning.
        """
        self._run.position.choose(epoch, running=self._running)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers}, "
            f"epoch={self.epoch}, step={self.step})"
        )

    def __len__(self) -> int:
        """Batches that this rank is given in a whole epoch. Before the first iterator all ranks ask together.

        Raises:
            TypeError: It is not known beforehand (streamed formats, `end="cycle"`).
        """
        spec = self._run.settle()
        if spec.end == "cycle":
            raise TypeError('This loader has no len(): "cycle" is endless.')
        if isinstance(spec, Spec) and not spec.indexed:
            raise TypeError(
                f"This loader has no len(): {spec.format.name} shards do not tell how many records they hold "
                "(`streamio index` counts them)."
            )
        now = self._run.position.place if self._running else self._now()
        return spec.batches(now)

    def stats(self, *, all_ranks: bool = False) -> Stats:
        """What was delivered so far, of all workers.

        Args:
            all_ranks: Sum over all ranks; all of them call it together then.
        """
        stats = self.ledger.stats()
        if not all_ranks:
            return stats
        if self.dataset.group.alone and self.dataset.topology.world_size > 1:
            raise GroupError("stats(all_ranks=True) needs a process group: call torch.distributed.init_process_group.")
        parts = shared(self.dataset.group, lambda: json.dumps(stats.to_json()).encode(), "summing the stats")
        return sum((Stats(**json.loads(part)) for part in parts), Stats())

    def state_dict(self) -> dict[str, str]:
        """The place behind the last batch delivered, as one JSON string. Cheap, and no call to other ranks."""
        return {"streamio": json.dumps(self.state().to_json(), sort_keys=True)}

    def load_state_dict(self, state_dict: dict[str, str], *, allow: Collection[str] = ()) -> None:
        """Let the next iterator begin at a place that `state_dict` told.

        Args:
            state_dict: From `state_dict`.
            allow: What may differ from then: `"data"`, `"seed"`, `"shuffle"`, `"window"`, `"end"`,
                `"drop_last"`, `"on_drop"`, `"filters"`, `"max_records"`, `"mixture"`.

        Raises:
            StatusError: It is no state of ours, or does not fit. Where nothing has been listed yet, fitting is
                checked by the next iterator.
        """
        try:
            value = json.loads(state_dict["streamio"])
        except (KeyError, TypeError, ValueError) as error:
            raise StatusError(f"This is no state of a streamio loader: {type(error).__name__}: {error}.") from None
        self.adopt(State.from_json(value, self.dataset.topology.rank), allow)

    def state(self) -> State:
        """The place behind the last batch delivered."""
        return self._run.state(running=self._running)

    @property
    def shards(self) -> ShardList:
        """The shards that the epoch at hand is read from. Before the first iterator all ranks ask together."""
        return self._run.shards

    def skip_to(self, step: int) -> None:
        """Let the next iterator begin at a later step, without reading what lies between (after a loss spike).

        The records of the steps between count as delivered. All ranks call it with the same step.

        Raises:
            ValueError: The step lies behind: resume from a checkpoint before it instead.
            TypeError: The data set is streamed: where a step begins is not known without an index.
        """
        self._run.skip(self._now(), whole("step", step))
        self._close_active()

    def leave_out(self, *urls: str) -> None:
        """Let the next iterator go on without the records of some shards, and all after it, resumes included.

        Their slots stay: they are filled or left short as dropped ones are (`on_drop`), but count as filtered. With
        `"refill"` a batch that is left out as a whole holds copies of one other record: prefer `"short"`.
        All ranks call it with the same URLs, at the same step.

        Args:
            *urls: As `provenance=True` tells them, or a drop report; those of earlier calls stay left out.

        Raises:
            ValueError: There is no such shard.
            TypeError: The data set is streamed: make an index.
        """
        self._run.leave_out(self._now(), urls)
        self._close_active()

    def steps_of(self, state: dict[str, Any]) -> int:
        """Global batches of the epoch that a state is in, under all its grids; 0 where they are not known."""
        spec = self._run.settle()
        start = State.from_json(state, self.dataset.topology.rank).start
        return spec.steps(start) + sum(each.k for each in start.past) if spec.indexed else 0

    def adopt(
        self, state: State, allow: Collection[str] = (), difference: str = "", shards: ShardList | None = None
    ) -> None:
        """Let the next iterator begin at a state.

        Args:
            state: The state.
            allow: As for `load_state_dict`.
            difference: What is known to have changed in the data since, by name.
            shards: What its epoch goes on with, where other data are there now and are for the next one.

        Raises:
            StatusError: It does not fit. Where nothing has been listed yet, that is found by the next iterator.
            ValueError: `allow` holds what can't be allowed.
        """
        check_allowed(allow)
        self._close_active()
        self._run.adopt(state, allow, difference, shards)

    # Iteration

    def __iter__(self) -> Any:
        """The batches of an epoch: from the loaded place on, else from its beginning."""
        self._run.settle()
        self._close_active()
        spec, start = self._run.begin()
        if self._pool is not None and spec is not self._made_for:
            self._release(self._pool, failed=True)
        workers = self._workers(spec.at(start).grid)
        self._run.position.place = start
        self._restarts = Restarts(self.restart_workers)
        iterator = LoaderIterator(
            partial(self._begin, spec, workers),
            workers,
            self,
            prefetch=(self.prefetch_factor or 2) if self.num_workers or self._serving.threads else 1,
            chunk=RECORDS_AT_ONCE if self.batch_size is None else 1,
            finish=self._finish,
            release=self._release,
        )
        self._active = weakref.ref(iterator)
        return iterator

    def delivered(self, answer: Answer, *, of_epoch: bool) -> None:
        """Note what an answer brought; called by the iterator."""
        self.ledger.add(answer)
        place, schedule = self._run.position.place, self._schedule
        if isinstance(schedule, ByTurns):
            place = replace(
                place,
                cursors=tuple(schedule.cursors),
                ended=frozenset(schedule.ended),
                column=schedule.column,
            )
        self._run.position.place = replace(place, k=place.k + of_epoch)
        self._run.position.step += of_epoch

    def died(self, death: WorkerDiedError) -> None:
        """A worker has died: go on with new ones, or raise where that was done often enough; called by the iterator."""
        self._restarts.note(death, self.num_workers, self._run.position.step, self._run.position.place.epoch)
        self.ledger.restarted()

    def finished(self) -> None:
        """The epoch is over: the next one is up; called by the iterator."""
        self._run.finished()

    def waited(self, seconds: float) -> None:
        """Count waiting time; called by the iterator."""
        self.ledger.waited(seconds)

    # Parts

    @property
    def _running(self) -> bool:
        """Whether an iterator still delivers."""
        iterator = self._active() if self._active is not None else None
        return iterator is not None and iterator.running

    def _now(self) -> Start:
        """Where the run stands."""
        return self._run.now(running=self._running)

    def _workers(self, grid: Grid) -> int:
        """How many workers make batches of a grid; warns of those that can't."""
        wanted = max(1, self.num_workers)
        workers = grid.workers(wanted)
        if workers < wanted and grid != self._warned_of:
            self._warned_of = grid
            logger.warning(
                "%d of %d workers have nothing to do: the epoch was dealt to %d columns of lanes, and %d is the most "
                "that can share these. lanes=(%d, %d) of the data set fits %d workers from the next run on.",
                wanted - workers, wanted, grid.columns, workers, grid.rows, wanted, wanted,
            )  # fmt: skip
        return workers

    def _begin(self, spec: Spec | MixedSpec, workers: int) -> tuple[Pool, Schedule]:
        """Let workers begin behind the last batch delivered, new ones where there are none."""
        pool = self._pool or self._new_pool(spec)
        self._pool = pool if self.persistent_workers else None
        try:
            pool.begin(self._run.position.place)
        except BaseException:
            self._release(pool, failed=True)
            raise
        self._schedule = self._new_schedule(spec, self._run.position.place, workers)
        return pool, self._schedule

    def _new_pool(self, spec: Spec | MixedSpec) -> Pool:
        work, self._made_for = work_of(spec), spec
        if not self.num_workers:
            return InProcess(work, self._serving)
        if not self._restarts.count:  # a death must not move the training loop's own random state
            self._seed = self._base_seed()
        seed = self._seed + self._restarts.count * self.num_workers
        arguments = WorkerArguments(work, self._serving, self.dataset, seed, self.worker_init_fn)
        return Processes(arguments, self.num_workers, start_context(self.multiprocessing_context), self.timeout)

    def _base_seed(self) -> int:
        """The workers' base seed: of the generator, else of seed and epoch, so that the loop's random state stays."""
        if self.generator is not None:
            return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        return int(generator("workers", self.dataset.seed, self.epoch).integers(1 << 62))

    def _finish(self, answer: Answer) -> None:
        """Make of an answer's batch what the user gets."""
        if answer.raw:
            answer.batch, answer.raw = to_batch(answer.batch, self._serving.output), False
        if self.pin_memory and accelerated():
            answer.batch = pin(answer.batch)

    def _new_schedule(self, spec: Spec | MixedSpec, start: Start, workers: int) -> Schedule:
        if not spec.indexed:
            return ByTurns(start, workers)
        stop = None if spec.end == "cycle" else self._run.steps(spec, start)
        return ByNumber(start.k, stop, workers)

    def _release(self, pool: Pool, failed: bool) -> None:
        """An iterator is done with its pool; workers that are to live on do so unless something broke."""
        if pool is self._pool and not failed:
            return
        if pool is self._pool:
            self._pool = None
        pool.close()

    def _close_active(self) -> None:
        iterator = self._active() if self._active is not None else None
        if iterator is not None:
            iterator.close()
        self._active = None
