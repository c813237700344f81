"""Makes the index of a data set: reads each new or changed shard once, over processes and ranks; writes one object.

What is read of a shard is `scan`'s part, what is written `table`'s.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from streamio.checks import checked_urls, kind, mapping, names, one_of, real, storage, whole_or_none
from streamio.errors import FormatError, GroupError
from streamio.formats import registry
from streamio.formats.base import IndexedFormat
from streamio.group import Group
from streamio.index.parts import Parts
from streamio.index.place import check_out, data_folder, default_url, folder_of
from streamio.index.scan import Scanner
from streamio.index.share import ShareReader
from streamio.index.table import IndexTable, options_text
from streamio.settle import What, format_of, listed
from streamio.storage import objects
from streamio.storage.faults import shown
from streamio.storage.retry import Retry
from streamio.storage.settings import EngineName, ReadSettings
from streamio.storage.urls import normalise
from streamio.together import led, shared
from streamio.topology import resolve_topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.formats.base import Format
    from streamio.storage.shards import ShardList

logger = logging.getLogger(__name__)

#: Seconds that a rank waits for others to have read their shares: some shards are larger than others.
READING = 86_400.0

#: Bytes for which it is worth it to start a process.
WORTH = 32 << 20

#: What may be told while shards are read: how many are done, of how many, and the bytes of those done.
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Built:
    """What became of an index.

    Attributes:
        url: Where it lies.
        shards: Shards that were listed.
        read: Those that were read for it.
        kept: Those that an earlier index, or a run that was broken off, knew already.
        records: Records of all listed shards; bad ones count, as they have slots too.
        damaged: URL and error of each shard that can't be read to its end, in the order of the listing. A run drops
            what is lost of them.
        seconds: What it took.
    """

    url: str
    shards: int
    read: int
    kept: int
    records: int
    damaged: tuple[tuple[str, str], ...]
    seconds: float

    @property
    def failed(self) -> int:
        """Shards that are damaged."""
        return len(self.damaged)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values."""
        damaged = [{"url": url, "error": error} for url, error in self.damaged]
        return asdict(self) | {"failed": self.failed, "damaged": damaged}


def build_index(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    format: str | None = None,  # noqa: A002 - the user's word for it
    format_options: Mapping[str, Any] | None = None,
    engine: EngineName = "auto",
    retry: Retry | None = None,
    workers: int | None = None,
    group_timeout: float = 600.0,
    progress: Progress | None = None,
) -> Built:
    """Read a data set once and write its index: counts and seek points of every shard.

    Where there is an index already, only shards that are new or changed are read. What was read by a run that was
    broken off is taken up. All ranks of a process group call it together, and each reads a share.

    Args:
        urls: The data, as `StreamingDataset` takes them.
        out: URL of the index. Default: `_streamio/index.parquet` in the common folder of the URLs, where data sets
            look for it.
        columns: Columns that the data set will be read by. They matter to parquet and Arrow files, the sizes of whose
            records are those of the wanted columns; default all.
        storage_options: Passed to fsspec, for the data and for the index.
        format: Name of the format, where suffixes do not tell.
        format_options: Further options of a format, by name.
        engine: What reads, as for `StreamingDataset`.
        retry: How storage calls are retried.
        workers: Processes that read, on each rank; 1 reads in this process. Default: one a processor, shared by the
            ranks of this machine, or fewer where there is little to read. For parquet and Arrow files only footers are
            read, in threads of this process.
        group_timeout: Seconds to wait for other ranks, but for their reading.
        progress: Called after each shard of this rank: shards done, shards to do, bytes done. Default: a line in the
            log every ten seconds.

    Returns:
        What was done, the same on all ranks.

    Raises:
        TypeError: An option of a wrong type, named.
        ValueError: `workers` is less than 1; `out` is missing and there is no default place, or lies among the data.
        WorkerError: A worker process died.
        StreamioError: As for `StreamingDataset.prepare`.
    """
    began = time.monotonic()
    named = checked_urls(urls)
    workers = whole_or_none("workers", workers, 1)
    group_timeout = real("group_timeout", group_timeout)
    one_of("engine", engine, get_args(EngineName))
    kind("format", format, str, "the name of a format")
    kind("retry", retry, Retry, "a streamio.Retry")
    kind("progress", progress, Callable, "a function of three ints")
    options = mapping("format_options", format_options, "option names to values")
    options |= {} if columns is None else {"columns": names("columns", columns)}
    read = ReadSettings(storage_options=storage(storage_options), retry=retry or Retry(), engine=engine)
    what = What(named, format, options, read)
    topology = resolve_topology()
    group = Group(topology, group_timeout)
    if group.alone and topology.world_size > 1:
        raise GroupError(
            f"An index is made by {topology.world_size} ranks together: call torch.distributed.init_process_group "
            "first."
        )
    _, shards = listed(what, group)
    scanner = _scanner(what, shards)
    url = _place(what, shards, out)
    parts = Parts(url, read)
    old, todo = _todo(led(group, lambda: _known(url, parts, read), "reading the index"), url, shards, scanner)
    mine = _share(todo, shards, topology.rank, topology.world_size)
    worth = 1 + int(shards.sizes[mine].sum()) // WORTH
    reader = ShareReader(scanner, read, workers or min(_processors(), worth), parts, progress)
    tables = shared(
        Group(topology, READING),
        lambda: IndexTable.of(reader.read([shards[number] for number in mine])).to_bytes(),
        "reading the shards",
    )

    def write() -> bytes:
        new = [IndexTable.from_bytes(data, "", url) for data in tables]
        meanwhile: list[IndexTable] = []
        with suppress(FormatError):  # told before
            meanwhile = _stored(url, read)  # others may have put other data's shards into it
        whole = IndexTable.joined([old, *meanwhile, *new])
        if len(todo) or parts.any():
            objects.put(url, whole.to_bytes(shown(folder_of(url))), read.storage_options, retry=read.retry)
        parts.remove()
        mine = whole.taken(whole.rows_of(shards))
        damaged = [(shown(shard.url), error) for shard, error in zip(shards, mine.errors(), strict=True) if error]
        return json.dumps([int(mine.column("records").sum()), damaged, time.monotonic() - began]).encode()

    records, told, seconds = json.loads(led(group, write, "writing the index"))
    damaged = tuple((url, error) for url, error in told)
    built = Built(shown(url), len(shards), len(todo), len(shards) - len(todo), records, damaged, seconds)
    if group.leads:
        logger.info("Indexed %d shards (%d read, %d kept), %d records: %s", *_figures(built), built.url)
    return built


def _figures(built: Built) -> tuple[int, int, int, int]:
    return built.shards, built.read, built.kept, built.records


def _scanner(what: What, shards: ShardList) -> Scanner:
    """The format, but for options that where records begin does not depend on."""
    form: Format = format_of(what, shards, None)
    indexed = isinstance(form, IndexedFormat)
    if not indexed:
        options = {key: value for key, value in what.options.items() if key not in ("columns", "types", "decode")}
        form = registry.for_urls((shard.url for shard in shards), format=what.format, options=options)
    return Scanner(form, options_text(what.options, indexed=indexed))


def _place(what: What, shards: ShardList, out: str | os.PathLike[str] | None) -> str:
    folder = data_folder(what.urls, (shard.url for shard in shards))
    if out is not None:
        url = normalise(out)
        check_out(url, folder)
        return url
    if folder is None:
        raise ValueError(
            "these URLs have no common folder in which an index could lie: say out= (and index= where it is used)."
        )
    return default_url(folder)


def _known(url: str, parts: Parts, read: ReadSettings) -> bytes:
    """All that is known already, as one index with full URLs."""
    stored: list[IndexTable] = []
    try:
        stored = _stored(url, read)
    except FormatError as error:
        logger.warning("All is read anew: %s", error)
    return IndexTable.joined([IndexTable.of([]), *stored, *parts.read()]).to_bytes()


def _stored(url: str, read: ReadSettings) -> list[IndexTable]:
    """The index that is there, with full URLs; none where there is none.

    Raises:
        FormatError: What is there is no index.
    """
    data = objects.get(url, read.storage_options, retry=read.retry)
    return [] if data is None else [IndexTable.from_bytes(data, shown(folder_of(url)), url)]


def _todo(data: bytes, url: str, shards: ShardList, scanner: Scanner) -> tuple[IndexTable, NDArray[np.int64]]:
    """What is known, and the numbers of the shards that have to be read."""
    known = IndexTable.from_bytes(data, "", url)
    fits = known.made_by(known.rows_of(shards), scanner.format.name, scanner.options)
    return known, np.flatnonzero(~fits)


def _share(todo: NDArray[np.int64], shards: ShardList, rank: int, ranks: int) -> list[int]:
    """A rank's share of the shards, the largest first, so that all end at about the same time."""
    largest = todo[np.argsort(-shards.sizes[todo], kind="stable")]
    share: list[int] = largest[rank::ranks].tolist()
    return share


def _processors() -> int:
    """Processors for one rank of this machine."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, mine // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
