"""Reads the footers of all shards, in parallel, each rank its share, and joins what they tell to one list of splits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.formats.base import CorruptError, NamedFormat
from streamio.observe.drops import Drop
from streamio.partitions import conflict
from streamio.plan.indexed import IndexedSplits
from streamio.storage.faults import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from streamio.formats.base import Counts, IndexedFormat, Source
    from streamio.storage.shards import Shard, ShardList

#: Footers read at once by one rank; each is a request or two of a few KiB.
THREADS = 16

_FIELDS = ("shard", "part", "first", "records", "nbytes", "wire")


def count_share(
    format: IndexedFormat,  # noqa: A002 - the word of the field
    shards: ShardList,
    source: Callable[[Shard], Source],
    rank: int,
    ranks: int,
    chosen: Sequence[int] | None = None,
    keys: Collection[str] = (),
) -> bytes:
    """Count a rank's share of the shards and return the outcome as an Arrow IPC stream for `join_counts`.

    Args:
        format: How to count.
        shards: All shards.
        source: Where bytes come from.
        rank: This rank, which counts the shards `rank`, `rank + ranks`, ... of the chosen ones.
        ranks: Number of ranks.
        chosen: Numbers of the shards that are to be read; None for all.
        keys: Names that no column may have: partition keys.

    Raises:
        FormatError: A shard does not go with the options, or has a column with the name of a key.
        ReadError: A footer can't be read.
    """
    mine = (range(len(shards)) if chosen is None else chosen)[rank::ranks]

    def count(index: int) -> Counts | str:
        return _count(format, source(shards[index]), keys)

    rows: dict[str, list[int]] = {name: [] for name in (*_FIELDS, "kept")}
    errors: list[str | None] = []
    with ThreadPoolExecutor(min(THREADS, max(1, len(mine))), "streamio-count") as threads:
        for index, counts in zip(mine, threads.map(count, mine), strict=True):
            if isinstance(counts, str):
                entries = [(index, -1, 0, 0, 0, 0, 0)]
                errors.append(counts)
            else:
                first = np.concatenate(([0], np.cumsum(counts.records)))[:-1].tolist() if counts.records else []
                kept = counts.kept or (True,) * len(counts.records)
                columns = zip(first, counts.records, counts.nbytes, counts.wire, kept, strict=True)
                entries = [(index, part, *values) for part, values in enumerate(columns)]
                errors += [None] * len(entries)
            for entry in entries:
                for name, value in zip((*_FIELDS, "kept"), entry, strict=True):
                    rows[name].append(int(value))
    return to_stream(rows, errors)


def to_stream(columns: Mapping[str, Any], errors: list[str | None]) -> bytes:
    """Counts as `join_counts` takes them.

    Args:
        columns: Numbers of a split in each row, by name; a part of -1 stands for a shard that could not be opened.
        errors: Why, for such rows; else None.
    """
    import pyarrow as pa

    arrays: dict[str, pa.Array] = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    table = pa.table({**arrays, "error": pa.array(errors, pa.string())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def join_counts(parts: list[bytes], shards: ShardList) -> tuple[IndexedSplits, list[Drop], int]:
    """All ranks' outcomes.

    Returns:
        One list of splits in the order of the shards; the shards that could not be opened; and the number of records
        that are in no split, because `filters=` rules them out.
    """
    import pyarrow as pa

    table = pa.concat_tables([pa.ipc.open_stream(part).read_all() for part in parts])
    table = table.sort_by([("shard", "ascending"), ("part", "ascending")]).combine_chunks()
    columns = {name: np.asarray(table[name].to_numpy(), dtype=np.int64) for name in _FIELDS}
    corrupt = np.flatnonzero(columns["part"] < 0).tolist()
    messages = table["error"]
    drops = [Drop("corrupt", shown(shards[int(columns["shard"][i])].url), "", messages[i].as_py()) for i in corrupt]
    matches = table["kept"].to_numpy() > 0
    keep = (columns["records"] > 0) & matches
    left_out = int(columns["records"][~matches].sum())
    return IndexedSplits(**{name: columns[name][keep] for name in _FIELDS}), drops, left_out


def _count(format: IndexedFormat, source: Source, keys: Collection[str]) -> Counts | str:  # noqa: A002
    try:
        counts = format.count(source)
    except CorruptError as error:
        return str(error)
    names = format.names(source) if keys and isinstance(format, NamedFormat) else []
    for key in keys:
        if key in names:
            raise conflict(source.url, key)
    return counts
