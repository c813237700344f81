"""Settles a data set before the first read: lists the shards, learns their counts, and cuts them into splits.

Done once, in the parent, by all ranks together where there is a process group. What comes out are plain values.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streamio.errors import DataNotFoundError, FormatError
from streamio.formats import registry
from streamio.formats.base import FilteringFormat, IndexedFormat
from streamio.observe.stats import IoCounts
from streamio.partitions import find as partitions_of
from streamio.plan import IndexedSplits, StreamedSplits
from streamio.storage.faults import shown
from streamio.together import led, shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.formats.base import Format
    from streamio.formats.filters import Filters
    from streamio.group import Group
    from streamio.observe.drops import Drop
    from streamio.partitions import Partitions, PartitionsOption
    from streamio.storage.reader import ReadSettings
    from streamio.storage.shards import ShardList
    from streamio.topology import Topology

logger = logging.getLogger(__name__)

_INDEX = "Make an index (`streamio index`)."


@dataclass(frozen=True)
class Settled:
    """A data set with nothing left to find out.

    Attributes:
        topology: Whose part this process reads.
        shards: The shards.
        format: How to decode them.
        splits: Their splits.
        drops: Shards that could not be opened.
        run: A random name, the same on all ranks, for a run that begins here.
        io: What this rank read to settle it (footers; small shards whole).
        partitions: What URLs tell of their records; None for nothing.
        index: URL of the index without which records could not be counted; None where there is none.
        uncounted: What to do to have records counted, where they are not.
    """

    topology: Topology
    shards: ShardList
    format: Format
    splits: IndexedSplits | StreamedSplits
    drops: tuple[Drop, ...]
    run: str
    io: IoCounts
    partitions: Partitions | None = None
    index: str | None = None
    uncounted: str = _INDEX


@dataclass(frozen=True)
class What:
    """What to settle: the data as the user named them.

    Attributes:
        urls: URLs, globs or folders.
        format: Name of a format, None to go by suffix.
        options: Options of the format.
        read: How to read.
        partitions: Which folders become columns.
        filters: Which records are wanted.
        index: URL of the index, `"auto"` for the one beside the data if there is one, None for none.
        max_records: Records that are taken, the first ones; None for all.
    """

    urls: Sequence[str]
    format: str | None
    options: Mapping[str, Any]
    read: ReadSettings
    partitions: PartitionsOption = None
    filters: Filters | None = None
    index: str | None = None
    max_records: int | None = None


def settle(what: What, topology: Topology, group: Group, shards: ShardList | None = None) -> Settled:
    """List and count, together with the group's other ranks.

    Args:
        what: The data.
        topology: Whose part this process reads.
        group: The ranks that act together.
        shards: The shards, where they have been listed before; the run has no name then.

    Raises:
        StreamioError: Nothing found, no access, an unknown format and the like; the same on all ranks.
    """
    run, shards = listed(what, group) if shards is None else ("", shards)
    partitions = partitions_of(what.partitions, (shard.url for shard in shards), what.options.get("columns"))
    format = format_of(what, shards, partitions)  # noqa: A001 - the word of the field
    format, matches = _filtered(what.filters, format, partitions, shards)  # noqa: A001
    splits: IndexedSplits | StreamedSplits
    drops: list[Drop] = []
    io = IoCounts()
    known, index, uncounted = None, None, _INDEX
    if what.index is not None:
        from streamio.index.find import Known, Wanted, look_up

        wanted = Wanted.of(what.urls, shards, matches, format, _options(what, partitions))
        found = look_up(what.index, wanted, what.read, group)
        if isinstance(found, Known):
            known, format, index = found, found.format, found.url if wanted.streamed else None  # noqa: A001
        elif found is not None:
            uncounted = found.why
    if isinstance(format, IndexedFormat):
        from streamio.formats.counting import count_share, join_counts
        from streamio.storage.reader import Reader

        parts = [] if known is None else [known.counts]
        chosen = np.flatnonzero(matches).tolist() if known is None else known.unknown
        if chosen:
            rank, ranks = (0, 1) if group.alone else (topology.rank, topology.world_size)
            # Through fsspec, so that this process may still fork its workers.
            with Reader(replace(what.read, engine="fsspec")) as reader:
                keys = partitions.delivered if partitions is not None else ()
                share = partial(count_share, format, shards, reader.source, rank, ranks, chosen, keys)
                parts += shared(group, share, "reading the footers")
                io = IoCounts.of(reader.counters)
        splits, drops, left_out = join_counts(parts, shards)
        if not len(splits) and left_out and what.filters is not None:
            raise DataNotFoundError(
                f"filters={what.filters.text} leaves nothing of {int(matches.sum())} shards: by their statistics none "
                f"of {left_out} records can match ({shown(shards[0].url)} and others)."
            )
        if not len(splits):
            raise DataNotFoundError(_no_records(shards, drops))
        if what.max_records is not None:
            splits = _first(splits, what.max_records)
    elif what.max_records is not None:
        raise FormatError(
            f"max_records={what.max_records} takes records that are counted, and {format.name} shards do not tell "
            f"theirs ({shown(shards[0].url)} and others): parquet and Arrow files do, and every format with an index. "
            f"{uncounted} To stop early, leave the loop."
        )
    else:
        splits = StreamedSplits.cut(
            np.where(matches, shards.sizes, 0), lambda index: format.cuttable(shards[index].url)
        )
    for drop in drops:
        logger.warning("%s can't be read and is left out: %s.", drop.url, drop.message)
    return Settled(topology, shards, format, splits, tuple(drops), run, io, partitions, index, uncounted)


def format_of(what: What, shards: ShardList, partitions: Partitions | None) -> Format:
    """The one format of all shards, which is not told of partition keys.

    Raises:
        FormatError: There are several, or an option does not go with it.
    """
    options = _options(what, partitions)
    return registry.for_urls((shard.url for shard in shards), format=what.format, options=options)


def _options(what: What, partitions: Partitions | None) -> dict[str, Any]:
    """Options of the format."""
    options = dict(what.options)
    if partitions is not None and "columns" in options:
        options["columns"] = tuple(column for column in options["columns"] if column not in partitions.keys)
    return options


def _filtered(
    filters: Filters | None,
    format: Format,  # noqa: A002
    partitions: Partitions | None,
    shards: ShardList,
) -> tuple[Format, NDArray[np.bool_]]:
    """The format, which leaves out rows where it must, and for each shard whether its URL lets it match."""
    matches = np.ones(len(shards), bool)
    if filters is None:
        return format, matches
    from streamio.formats.filters import chosen
    from streamio.formats.rowfilter import RowFilter

    of_keys, whole = filters.on_keys(partitions)
    if not whole:
        if not isinstance(format, FilteringFormat):
            raise FormatError(
                f"filters= on columns takes parquet or Arrow files, and these are {format.name} "
                f"({shown(shards[0].url)} and others): raise streamio.DropRecord in a map= instead. Filters that speak "
                "of nothing but partition keys (with partitions=) go with every format."
            )
        format = replace(cast("Any", format), filters=RowFilter(filters, partitions))  # noqa: A001
    if of_keys is not None and partitions is not None:
        matches = chosen(of_keys, partitions, shards)
        logger.info("filters= leaves out %d of %d shards by their URLs.", int((~matches).sum()), len(shards))
        if not matches.any():
            raise DataNotFoundError(
                f"filters={filters.text} leaves nothing of {len(shards)} shards: none matches by its partition keys "
                f"({shown(shards[0].url)} and others)."
            )
    return format, matches


def listed(what: What, group: Group) -> tuple[str, ShardList]:
    """A name for the run, and the shards: listed by one rank for all.

    Raises:
        StreamioError: As for `settle`.
    """
    from streamio.storage.shards import ShardList

    run = uuid.UUID(int=random.SystemRandom().getrandbits(128), version=4).hex
    if group.alone:
        return run, _list(what)
    listed = led(group, lambda: run.encode() + _list(what).to_bytes(), "listing the data")
    return listed[: len(run)].decode(), ShardList.from_bytes(listed[len(run) :])


def _list(what: What) -> ShardList:
    from streamio.storage.discovery import discover

    accepts: Callable[[str], bool] | None = None if what.format else registry.accepts
    known = " ".join(registry.known())
    options, retry = what.read.storage_options, what.read.retry
    shards = discover(what.urls, storage_options=options, accepts=accepts, known=known, retry=retry)
    if accepts is not None:
        shards = _without_notes(shards)
    logger.info("Found %d shards, %d bytes.", len(shards), int(shards.sizes.sum()))
    return shards


def _without_notes(shards: ShardList) -> ShardList:
    """The shards but for text files beside some of another format: a README.txt is no data."""
    names = [registry.name_for(shard.url) for shard in shards]
    if "text" not in names or set(names) == {"text"}:
        return shards
    notes = [shard.url for shard, name in zip(shards, names, strict=True) if name == "text"]
    logger.warning(
        "%d text files beside shards of another format are left out (%s). To read text, name no others by the URL.",
        len(notes),
        shown(notes[0]),
    )
    return type(shards).of(shard for shard, name in zip(shards, names, strict=True) if name != "text")


def _first(splits: IndexedSplits, count: int) -> IndexedSplits:
    """The first records of all."""
    behind = np.cumsum(splits.records)
    last = int(np.searchsorted(behind, count))
    if last >= len(splits):
        return splits
    cut = int(behind[last]) - count
    arrays = (splits.shard, splits.part, splits.first, splits.records, splits.nbytes, splits.wire)
    shard, part, first, records, nbytes, wire = (array[: last + 1].copy() for array in arrays)
    records[last] -= cut
    logger.info("max_records=%d takes %d of %d splits.", count, last + 1, len(splits))
    return IndexedSplits(shard, part, first, records, nbytes, wire, cut)


def _no_records(shards: ShardList, drops: list[Drop]) -> str:
    if drops:
        return f"Not one of {len(shards)} shards could be opened. The first: {drops[0].url}: {drops[0].message}."
    return f"The {len(shards)} shards hold not one record ({shards[0].url} and others). Is the writer done?"
