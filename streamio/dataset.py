"""StreamingDataset: the user's options, checked once, and the joints between discovery, plan and reading."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.utils.data import get_worker_info

from streamio.checks import (
    checked_lanes,
    checked_max_drops,
    checked_urls,
    flags,
    kind,
    mapping,
    names,
    one_of,
    real,
    storage,
    whole,
    whole_or_none,
)
from streamio.distributed import DistributedIterableDataset
from streamio.errors import DataNotFoundError, FormatError, GroupError, TopologyError
from streamio.formats.filters import checked as checked_filters
from streamio.group import Group
from streamio.loader.spec import End, OnDrop, Spec, checked_epoch
from streamio.partitions import check as check_partitions
from streamio.plan import Grid, IndexedSplits
from streamio.settle import Settled, What, settle
from streamio.storage.engine import check_engine
from streamio.storage.faults import shown
from streamio.storage.retry import Retry
from streamio.storage.settings import EngineName, ReadSettings
from streamio.topology import resolve_topology

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from streamio.formats.filters import FiltersOption
    from streamio.observe.drops import Drop
    from streamio.partitions import PartitionsOption
    from streamio.storage.shards import ShardList
    from streamio.topology import Topology

logger = logging.getLogger(__name__)

#: Slots of a window where record sizes are not known before reading; `shuffle_bytes` closes it early.
STREAMED_WINDOW = 100_000


class StreamingDataset(DistributedIterableDataset):
    """Records that lie in an object store, dealt to ranks and workers in an order that belongs to the data.

    Nothing is read or listed at construction. The first iterator (or `prepare()`) settles the topology, the listing
    and the counts; where `torch.distributed` is initialised all ranks do that together.

    Args:
        urls: A URL, glob (`**` included), folder or path, or a list of these; anything that fsspec opens.
        columns: Columns (parquet) or keys (JSON lines) to read; all by default. Partition keys may be among them.
        filters: Which records to read: `[("lang", "==", "en"), ("score", ">", 0.5)]` (all of these), a list of such
            lists (one of these), or a `pyarrow.compute.Expression`. On columns of parquet and Arrow files, and on
            partition keys of every format. Shards and row groups that can't match are not read; other rows that do
            not match are left out (`stats().filtered`).
        partitions: Folders (`lang=en/year=2024/`) that become columns: `"hive"` for all, as strings; or a mapping
            that gives some of them a type: pyarrow's, its name (`"int32"`), or `int`, `float`, `str`, `bool`.
        shuffle: Whether to permute splits, and records within windows.
        seed: Seed of the permutation; with the epoch it decides the order.
        storage_options: Passed to fsspec, and carried over to obstore for s3:// and gs://.
        format: Name of a format where suffixes do not tell (`"parquet"`, `"jsonl"`, `"tar"`).
        decode: For tar: functions from bytes to a value by member extension (`{"json": json.loads, "cls": int}`).
        format_options: Further options of a format, by name: what a third party's format takes.
        map: Applied to each record where it is read. A parameter named `rng` gets a `numpy.random.Generator` keyed by
            (seed, epoch, slot). Raise `DropRecord` in it to leave a record out.
        provenance: Whether records carry `__shard__` (URL) and `__index__` (row of a parquet file, sample of a
            tar, byte offset of a line).
        end: `"even"`: every rank makes the same number of steps, padded where needed (default where counts are known).
            `"exact"`: every record once and no padding (default on one rank where they are not). `"cycle"`: endless.
        on_drop: `"refill"` puts a good record of the same batch in a dropped one's slot (default), `"short"`
            leaves batches shorter
            (default with `end="exact"`, and with `filters=`). Streamed formats read on instead.
        max_drops: Dropped records that the run bears: a count, or a fraction of what was read (a float below
            1). None bears all, but for a million in a row where a batch must not be empty.
        shuffle_bytes: Memory for shuffling, in bytes per process; decides the window of a new run. Default 64 MiB.
        window: Records that are permuted together, in place of `shuffle_bytes`.
        lanes: Rows and columns of the lane grid, `(R, G)`: for every world size that divides R, and number of workers
            that divides G, the sequence of global batches is the same. Default: the running topology, at each epoch.
        on_topology_change: What happens where a run is taken up by a topology that its grid does not fit: `"deal"`:
            what is left of the epoch is dealt anew, in another order. `"raise"`: it is refused.
        on_change: What happens where the data are not those that a run began with: `"error"`; or `"next_epoch"`: the
            data are listed anew at the beginning of each epoch, by all ranks together, and an epoch that was begun goes
            on with the shards that it began with (by `Checkpoints`, which keeps their list).
        prefetch_bytes: Bytes read ahead per process, decoded or not. Default 128 MiB.
        max_records: Takes the first records alone, in the order of the listing, for trying things out; counted before
            `filters=` looks at rows. For data that is counted: parquet, Arrow, and what has an index.
        index: URL of the data set's index (`streamio index`), which tells counts without reading. `"auto"`, the
            default: the one beside the data, where there is one. None: none is used.
        engine: What reads: `"obstore"` (s3:// and gs:// alone, the fastest), `"fsspec"` (everything), or `"auto"`, the
            default: obstore where it can be told all of `storage_options`, else fsspec.
        retry: How storage calls are retried.
        rank: Data-parallel rank, with `world_size`, in place of what is found.
        world_size: Number of data-parallel ranks.
        device_mesh: A mesh with dimension names; ranks along other than data-parallel dimensions get the same records.
        dp_dims: Names of its data-parallel dimensions, where they are not named as usual.
        process_group: The data-parallel group, in place of all ranks.
        group_timeout: Seconds to wait for other ranks in what all do together. Default 600.
        name: Stands in log messages. Default: the first URL's last part.

    Raises:
        TypeError: An option of a wrong type, named.
        ValueError: An option that can't be, named.
        TopologyError: Topology arguments that do not go together.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        filters: FiltersOption = None,
        partitions: PartitionsOption = None,
        shuffle: bool = False,
        seed: int = 0,
        storage_options: Mapping[str, Any] | None = None,
        format: str | None = None,  # noqa: A002 - the word of the field
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        format_options: Mapping[str, Any] | None = None,
        map: Callable[..., Any] | None = None,  # noqa: A002 - the word of the field
        provenance: bool = False,
        end: End | None = None,
        on_drop: OnDrop | None = None,
        max_drops: int | float | None = None,
        shuffle_bytes: int = 64 << 20,
        window: int | None = None,
        lanes: tuple[int, int] | None = None,
        on_topology_change: Literal["deal", "raise"] = "deal",
        on_change: Literal["error", "next_epoch"] = "error",
        prefetch_bytes: int = 128 << 20,
        max_records: int | None = None,
        index: str | None = "auto",
        engine: EngineName = "auto",
        retry: Retry | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device_mesh: DeviceMesh | None = None,
        dp_dims: str | Sequence[str] | None = None,
        process_group: ProcessGroup | None = None,
        group_timeout: float = 600.0,
        name: str | None = None,
    ) -> None:
        self.urls = checked_urls(urls)
        kind("name", name, str, "text")
        super().__init__(name or shown(self.urls[0]).rstrip("/").rsplit("/", 1)[-1] or "dataset", num_workers=0)
        one_of("end", end, (*get_args(End), None))
        one_of("on_drop", on_drop, (*get_args(OnDrop), None))
        one_of("on_topology_change", on_topology_change, ("deal", "raise"))
        one_of("on_change", on_change, ("error", "next_epoch"))
        one_of("engine", engine, get_args(EngineName))
        flags(shuffle=shuffle, provenance=provenance)
        kind("format", format, str, "the name of a format")
        kind("map", map, Callable, "a function of one record")
        kind("retry", retry, Retry, "a streamio.Retry")
        check_partitions(partitions)
        if index is not None and not (isinstance(index, (str, os.PathLike)) and str(index)):
            raise TypeError(f'index={index!r} must be the URL of an index, "auto" or None.')
        options = mapping("format_options", format_options, "option names to values")
        if "filters" in options:
            raise ValueError("format_options holds filters: it is an argument of its own, filters=.")
        if columns is not None:
            options["columns"] = names("columns", columns)
        if decode is not None:
            options["decode"] = mapping("decode", decode, "extensions to functions", Callable)
        read = ReadSettings(
            storage_options=storage(storage_options),
            retry=retry or Retry(),
            prefetch_bytes=whole("prefetch_bytes", prefetch_bytes, 1),
            engine=engine,
        )
        check_engine(read, self.urls)
        index = None if index is None else os.fspath(index)
        max_records = whole_or_none("max_records", max_records, 1)
        self._what = What(self.urls, format, options, read, partitions, checked_filters(filters), index, max_records)
        self.shuffle = shuffle
        self.seed = whole("seed", seed)
        self.end: End | None = end
        self.on_drop: OnDrop | None = on_drop
        self.max_drops = checked_max_drops(max_drops)
        self.window = whole_or_none("window", window, 1)
        self.shuffle_bytes = whole("shuffle_bytes", shuffle_bytes, 1)
        self.lanes = checked_lanes(lanes)
        self.on_topology_change = on_topology_change
        self.on_change = on_change
        self.map = map
        self.provenance = provenance
        self.epoch = 0
        self.epoch_chosen = False  # whether somebody called set_epoch
        self._group_timeout = real("group_timeout", group_timeout)
        self._settled: Settled | None = None
        # A mesh or group is asked now and not kept. What is found by itself is asked for at the first iterator: the
        # process group is often made after the data set.
        self._topology: Topology | None = None
        if not (
            rank is None and world_size is None and device_mesh is None and dp_dims is None and process_group is None
        ):
            _check_torchs(device_mesh, process_group)
            self._topology = resolve_topology(
                rank=whole_or_none("rank", rank),
                world_size=whole_or_none("world_size", world_size),
                device_mesh=device_mesh,
                dp_dims=dp_dims if dp_dims is None or isinstance(dp_dims, str) else names("dp_dims", dp_dims),
                process_group=process_group,
            )

    def set_epoch(self, epoch: int = 0) -> None:  # the base class calls it a seed
        """Choose the epoch that the next iterator reads, from 0 on."""
        self.epoch = checked_epoch(epoch)
        self.epoch_chosen = True

    def get_data_paths(self, *args: Any, **kwargs: Any) -> Sequence[str]:
        """URLs of all shards, sorted."""
        return [shard.url for shard in self.prepare().shards]

    def prepare(self) -> Settled:
        """Settle topology, listing and counts now; later calls return at once.

        All ranks of a process group call it together.

        Raises:
            StreamioError: Nothing found, no access, an unknown format and the like.
        """
        if self._settled is None:
            topology = self.topology
            if get_worker_info() is not None and not Group(topology).alone:
                raise GroupError(
                    f"{self.dataset_name}: a torch DataLoader's worker can't list together with other ranks. Call "
                    "dataset.prepare() on every rank before iterating, or use streamio.DataLoader."
                )
            self._settled = settle(self._what, topology, Group(topology, self._group_timeout))
            self.local_rank, self.world_size = topology.rank, topology.world_size
        return self._settled

    def settled_anew(self, before: Settled, shards: ShardList | None = None) -> Settled:
        """The data settled once more, for one loader; what `prepare` tells stays as it is.

        All ranks of a process group call it together. Where records are counted by an index that does not know the
        data that are there now, those of before stay.

        Args:
            before: The data as that loader has them.
            shards: Shards that were listed before. Default: those that are there now.
        """
        # An index that the run depends on is asked for by name: without it the data would be streamed.
        what = replace(self._what, index=before.index or self._what.index)
        try:
            after = settle(what, before.topology, self.group, shards)
        except (FormatError, DataNotFoundError) as error:
            if before.index is None or shards is not None:
                raise
            if not before.topology.rank:
                logger.warning("%s: the shards of the epoch before are read on. %s", self.dataset_name, error)
            return before
        if after.shards.digest != before.shards.digest and not before.topology.rank:
            logger.info("%s: %d shards, and %d before.", self.dataset_name, len(after.shards), len(before.shards))
        return replace(after, run=before.run)

    @property
    def is_prepared(self) -> bool:
        """Whether everything has been settled."""
        return self._settled is not None

    @property
    def topology(self) -> Topology:
        """Whose part this process reads; asked for anew until the data set is prepared."""
        return self._settled.topology if self._settled else self._topology or resolve_topology()

    @property
    def group(self) -> Group:
        """The ranks that act together."""
        return Group(self.prepare().topology, self._group_timeout)

    def grid(self, batch: int, workers: int) -> Grid:
        """The lane grid of an epoch that begins now.

        Args:
            batch: Global batch size.
            workers: Workers of this rank.

        Raises:
            TopologyError: `lanes` does not fit ranks, workers and batch, or the ranks can't share the batch.
        """
        return Grid.of(self.lanes, batch, world_size=self.topology.world_size, workers=workers)

    def spec(self, grid: Grid, *, drop_last: bool, window: int | None = None, settled: Settled | None = None) -> Spec:
        """Everything that a worker needs to make batches.

        Args:
            grid: The lane grid of an epoch that begins now.
            drop_last: Whether short batches are left out.
            window: The window of a run that is resumed.
            settled: The data; default those that `prepare` tells.

        Raises:
            TopologyError: `end` or `lanes` does not go with the data.
        """
        settled = settled or self.prepare()
        topology = settled.topology
        end, filters = self._end(settled), self._what.filters
        window = window or self._window(settled)
        self._check_memory(settled, window, grid)
        return Spec(
            shards=settled.shards,
            splits=settled.splits,
            format=settled.format,
            read=self._what.read,
            grid=grid,
            rank=topology.rank,
            world_size=topology.world_size,
            seed=self.seed,
            shuffle=self.shuffle,
            window=window,
            window_bytes=self.shuffle_bytes,
            end=end,
            drop_last=drop_last,
            on_drop=self.on_drop or ("short" if end == "exact" or filters is not None else "refill"),
            map=self.map,
            provenance=self.provenance,
            partitions=settled.partitions,
            filters=None if filters is None else filters.text,
            max_records=self._what.max_records,
            most_drops=self.max_drops if isinstance(self.max_drops, int) else None,
        )

    def log_drop(self, drop: Drop) -> None:
        """Count and log a drop as the base contract has it; what `filters=` leaves out is none."""
        if drop.fault:
            self._log_drop(
                drop.reason, "%s%s: %s", drop.url, f" at {drop.position}" if drop.position else "", drop.message
            )

    def __iter__(self) -> Iterator[Any]:
        """Records of this rank and, in a worker of a torch DataLoader, of this worker.

        `streamio.DataLoader` does more.
        """
        from streamio.loader.plain import iterate

        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iterate(self, number, workers)

    def _end(self, settled: Settled) -> End:
        """What happens at the end of an epoch, by default where the user said nothing."""
        indexed = isinstance(settled.splits, IndexedSplits)
        if indexed:
            return self.end or "even"
        if self.lanes is not None:
            raise TopologyError(
                f"{self.dataset_name}: lanes={self.lanes} needs records that are counted, and {settled.format.name} "
                f"shards do not tell theirs. {settled.uncounted} Or leave lanes out."
            )
        if self.end == "even" or (self.end is None and settled.topology.world_size > 1):
            raise TopologyError(
                f"{self.dataset_name}: {settled.format.name} shards do not tell how many records they hold, so ranks "
                'can\'t be given the same number of steps beforehand. Say end="exact" (every record once; ranks may '
                'end at different steps) or end="cycle" (endless; stop by steps). With an index they can be "even". '
                f"{settled.uncounted}"
            )
        return self.end or "exact"

    def _window(self, settled: Settled) -> int:
        """Records that are permuted together in a run that begins now; the same on every rank."""
        if self.window is not None:
            return self.window
        splits = settled.splits
        if not isinstance(splits, IndexedSplits):
            return STREAMED_WINDOW
        return max(1, int(self.shuffle_bytes / max(1.0, splits.record_bytes)))

    def _check_memory(self, settled: Settled, window: int, grid: Grid) -> None:
        """Refuse windows that this machine can't hold; a window is stored, so it may come from a larger one."""
        splits = settled.splits
        if not self.shuffle or not isinstance(splits, IndexedSplits):
            return
        lanes = grid.rows // settled.topology.world_size * grid.columns
        longest = -(-int(splits.records.sum()) // (grid.rows * grid.columns))
        need = lanes * int(min(window, longest) * splits.record_bytes)
        have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if need > have:
            raise ValueError(
                f"{self.dataset_name}: windows of {window} records take some {need / 2**30:.1f} GiB in {lanes} lanes "
                f"of this rank, and this machine has {have / 2**30:.1f} GiB. "
                "Use fewer workers or lanes, or a smaller window (window=, shuffle_bytes=)."
            )

    def __repr__(self) -> str:
        urls = ", ".join(shown(url) for url in self.urls[:3]) + (", ..." if len(self.urls) > 3 else "")
        return f"{type(self).__name__}({urls}, shuffle={self.shuffle}, seed={self.seed})"

    def __getstate__(self) -> dict[str, Any]:
        """Pickled for a worker, the data set is settled first: a worker asks nobody."""
        if self._settled is None and get_worker_info() is None:
            self.prepare()
        return self.__dict__.copy()


def _check_torchs(device_mesh: Any, process_group: Any) -> None:
    """Look only at what was given: a torch without distributed has neither type."""
    if device_mesh is not None:
        from torch.distributed.device_mesh import DeviceMesh

        kind("device_mesh", device_mesh, DeviceMesh, "a torch DeviceMesh")
    if process_group is not None:
        from torch.distributed import GroupMember, ProcessGroup

        if process_group != GroupMember.NON_GROUP_MEMBER:  # the topology tells what is wrong with this one
            kind("process_group", process_group, ProcessGroup, "a torch ProcessGroup")
