"""Settles a data set before the first read: lists the shards, learns their counts, and cuts them into splits.

Done once, in the parent, by all ranks together where there is a process group. What comes out are plain values.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamio.errors import DataNotFoundError
from streamio.formats import registry
from streamio.formats.base import IndexedFormat
from streamio.observe.stats import IoCounts
from streamio.plan import IndexedSplits, StreamedSplits
from streamio.together import led, shared

if TYPE_CHECKING:
    from streamio.formats.base import Format
    from streamio.group import Group
    from streamio.observe.drops import Drop
    from streamio.storage.reader import ReadSettings
    from streamio.storage.shards import ShardList
    from streamio.topology import Topology

logger = logging.getLogger(__name__)


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
    """

    topology: Topology
    shards: ShardList
    format: Format
    splits: IndexedSplits | StreamedSplits
    drops: tuple[Drop, ...]
    run: str
    io: IoCounts


@dataclass(frozen=True)
class What:
    """What to settle: the data as the user named them.

    Attributes:
        urls: URLs, globs or folders.
        format: Name of a format, None to go by suffix.
        options: Options of the format.
        read: How to read.
    """

    urls: Sequence[str]
    format: str | None
    options: Mapping[str, Any]
    read: ReadSettings


def settle(what: What, topology: Topology, group: Group) -> Settled:
    """List and count, together with the group's other ranks.

    Raises:
        StreamioError: Nothing found, no access, an unknown format and the like; the same on all ranks.
    """
    run, shards = _listed(what, group)
    urls = (shard.url for shard in shards)
    format = registry.for_urls(urls, format=what.format, options=what.options)  # noqa: A001 - the word of the field
    splits: IndexedSplits | StreamedSplits
    drops: list[Drop] = []
    io = IoCounts()
    if isinstance(format, IndexedFormat):
        from streamio.formats.counting import count_share, join_counts
        from streamio.storage.reader import Reader

        rank, ranks = (0, 1) if group.alone else (topology.rank, topology.world_size)
        # Through fsspec, so that this process may still fork its workers.
        with Reader(replace(what.read, engine="fsspec")) as reader:
            parts = shared(
                group, lambda: count_share(format, shards, reader.source, rank, ranks), "reading the footers"
            )
            io = IoCounts.of(reader.counters)
        splits, drops = join_counts(parts, shards)
        if not len(splits):
            raise DataNotFoundError(_no_records(shards, drops))
    else:
        splits = StreamedSplits.cut(shards.sizes, lambda index: format.cuttable(shards[index].url))
    for drop in drops:
        logger.warning("%s can't be read and is left out: %s.", drop.url, drop.message)
    return Settled(topology, shards, format, splits, tuple(drops), run, io)


def _listed(what: What, group: Group) -> tuple[str, ShardList]:
    """A name for the run, and the shards: listed by one rank for all."""
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
    logger.info("Found %d shards, %d bytes.", len(shards), int(shards.sizes.sum()))
    return shards


def _no_records(shards: ShardList, drops: list[Drop]) -> str:
    if drops:
        return f"Not one of {len(shards)} shards could be opened. The first: {drops[0].url}: {drops[0].message}."
    return f"The {len(shards)} shards hold not one record ({shards[0].url} and others). Is the writer done?"
