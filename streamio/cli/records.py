"""Reads shards one after the other through the loader's own makers, so that what is seen is what a run would get.

No shard is opened before it is needed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamio.formats import registry
from streamio.formats.base import IndexedFormat
from streamio.formats.counting import count_share, join_counts
from streamio.loader.indexed import IndexedMaker
from streamio.loader.spec import Spec, Start
from streamio.loader.streamed import StreamedMaker
from streamio.loader.threads import Threads
from streamio.plan import START, Grid, IndexedSplits, StreamedSplits
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.shards import Shard, ShardList

if TYPE_CHECKING:
    from streamio.observe.drops import Drop

#: Bytes read before they are needed where only the first few records are wanted.
LITTLE = 1 << 20


def read(
    shards: Iterable[Shard],
    storage_options: Mapping[str, Any],
    format: str | None,  # noqa: A002
    columns: Sequence[str] | None,
    *,
    provenance: bool,
    ahead: bool,
) -> Generator[dict[str, Any] | Drop, None, None]:
    """The records of shards in order, and a `Drop` for each slot whose record can't be read.

    Args:
        shards: The shards.
        storage_options: Options for fsspec.
        format: Name of their format, None to go by suffix.
        columns: Columns to read, None for all.
        provenance: Whether records carry `__shard__` and `__index__`.
        ahead: Whether to read ahead as a run does; else little, for whoever stops soon.

    Raises:
        StreamioError: A shard can't be read, or its format does not go with the columns.
    """
    given = dict(storage_options)
    settings = ReadSettings(given) if ahead else ReadSettings(given, prefetch_bytes=LITTLE, part_bytes=LITTLE)
    with Reader(settings) as reader:
        for shard in shards:
            spec, drops = _spec(shard, reader, format, columns, provenance)
            yield from drops
            yield from _indexed(spec, reader) if spec.indexed else _streamed(spec, reader)


def _spec(
    shard: Shard,
    reader: Reader,
    format: str | None,  # noqa: A002
    columns: Sequence[str] | None,
    provenance: bool,
) -> tuple[Spec, list[Drop]]:
    """One shard as a data set of its own, read by one rank in batches of one."""
    made = registry.for_url(shard.url, format=format, options={"columns": columns})
    shards = ShardList.of([shard])
    drops: list[Drop] = []
    splits: IndexedSplits | StreamedSplits
    if isinstance(made, IndexedFormat):
        splits, drops, _ = join_counts([count_share(made, shards, reader.source, 0, 1)], shards)
    else:
        cuttable = made.cuttable(shard.url)
        splits = StreamedSplits.cut(shards.sizes, lambda _: cuttable)
    spec = Spec(
        shards=shards,
        splits=splits,
        format=made,
        read=reader.settings,
        grid=Grid(1, 1, 1),
        rank=0,
        world_size=1,
        seed=0,
        shuffle=False,
        window=1,
        window_bytes=1,
        end="exact",
        drop_last=False,
        on_drop="short",
        map=None,
        provenance=provenance,
    )
    return spec, drops


def _indexed(spec: Spec, reader: Reader) -> Generator[dict[str, Any] | Drop, None, None]:
    threads = Threads(2, "streamio-decode")
    maker = IndexedMaker(spec, reader, (threads, threads), Start(0))
    try:
        for k in range(spec.steps(Start(0))):
            made = maker.make(k)
            yield from made.drops
            yield from made.values
    finally:
        maker.close()
        threads.close()


def _streamed(spec: Spec, reader: Reader) -> Generator[dict[str, Any] | Drop, None, None]:
    maker = StreamedMaker(spec, reader, Start(0, cursors=(START,)))
    try:
        ended = False
        while not ended:
            made = maker.make(0)
            yield from made.drops
            yield from made.values
            ended = made.ended
    finally:
        maker.close()
