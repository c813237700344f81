"""What an index holds, as Arrow columns and as one parquet object: a row a shard, lists with an entry a split.

No I/O. The columns are documented in `docs/index.md`; whoever changes them counts `VERSION` up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.errors import FormatError
from streamio.formats.parquet_footer import first_line
from streamio.storage.faults import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from streamio.storage.shards import ShardList

VERSION = 1

#: Columns with an entry a split, int64.
SPLITS = ("split_records", "split_nbytes", "split_wire", "split_begin", "split_skip", "split_start")

_VERSION_KEY = b"streamio.index"


@dataclass
class Entry:
    """One shard.

    Attributes:
        url: Its URL, without credentials.
        size: Its length in bytes.
        version: Its version as the listing tells it.
        format: Name of the format that it was read by.
        options: The format's options that counts depend on, see `options_text`.
        codec: `"gz"`, `"zst"`, `"bz2"`, `"xz"`, or None.
        splits: The columns `SPLITS`, a list for each.
        error: Why it can't be read to its end; None where it can.
    """

    url: str
    size: int
    version: str | None
    format: str
    options: str
    codec: str | None
    splits: Mapping[str, Sequence[int]] = field(default_factory=lambda: {name: [] for name in SPLITS})
    error: str | None = None

    @property
    def records(self) -> int:
        """Its slots."""
        return int(sum(self.splits["split_records"]))


@dataclass(frozen=True)
class IndexTable:
    """The shards of an index, sorted by URL, each once.

    Attributes:
        table: The columns.
    """

    table: pa.Table

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> IndexTable:
        """Make one of entries in any order; of several with one URL the last stays."""
        import pyarrow as pa

        unique = {entry.url: entry for entry in entries}
        ordered = [unique[url] for url in sorted(unique)]
        columns: dict[str, list[Any]] = {
            name: [getattr(entry, name) for entry in ordered]
            for name in ("url", "size", "version", "format", "options", "codec", "records", "error")
        }
        columns |= {name: [entry.splits[name] for entry in ordered] for name in SPLITS}
        schema = _schema()
        return cls(pa.table({name: columns[name] for name in schema.names}, schema=schema))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @classmethod
    def joined(cls, tables: Sequence[IndexTable]) -> IndexTable:
        """Several as one; of a shard that is in some of them the last entry stays."""
        import pyarrow as pa

        whole = pa.concat_tables([each.table for each in tables])
        last = {url: row for row, url in enumerate(whole["url"].to_pylist())}
        return cls(whole.take(pa.array(sorted(last.values()), pa.int64())).sort_by("url").combine_chunks())

    def rows_of(self, shards: ShardList) -> NDArray[np.int64]:
        """For each shard of a listing its row, -1 where it is not here in that size and version; int64."""
        import pyarrow as pa
        import pyarrow.compute as pc

        told = [(shown(shard.url), shard.version or "") for shard in shards]
        urls = pa.array([url for url, _ in told], pa.large_string())
        found = pc.index_in(urls, self.table["url"].combine_chunks()).fill_null(-1)
        row = np.array(found.to_numpy(zero_copy_only=False), dtype=np.int64)
        known = np.flatnonzero(row >= 0)
        rows = self.table.take(pa.array(row[known]))
        versions = pa.chunked_array([pa.array([told[at][1] for at in known.tolist()], pa.large_string())])
        same = np.asarray(rows["size"].to_numpy()) == shards.sizes[known]
        same &= np.asarray(pc.equal(rows["version"].fill_null(""), versions).to_numpy(), dtype=bool)
        row[known[~same]] = -1
        return row

    def made_by(self, rows: NDArray[np.int64], format: str, options: str) -> NDArray[np.bool_]:  # noqa: A002
        """Of each of these rows, whether a format with these options (see `options_text`) made it; False for -1."""
        import pyarrow as pa
        import pyarrow.compute as pc

        fits = rows >= 0
        found = self.table.take(pa.array(rows[fits]))
        good = np.ones(len(found), bool)
        for name, value in (("format", format), ("options", options)):
            good &= np.asarray(pc.equal(found[name], pa.scalar(value, pa.large_string())).to_numpy(), dtype=bool)
        fits[fits] = good
        return fits

    def taken(self, rows: NDArray[np.int64]) -> IndexTable:
        """These rows alone, in this order."""
        import pyarrow as pa

        return IndexTable(self.table.take(pa.array(rows, pa.int64())).combine_chunks())

    def column(self, name: str) -> NDArray[np.int64]:
        """A column of numbers, one a shard."""
        return np.asarray(self.table[name].to_numpy(), dtype=np.int64)

    def errors(self) -> list[str | None]:
        """Why each shard can't be read to its end."""
        told: list[str | None] = self.table["error"].to_pylist()
        return told

    def splits(self, name: str) -> NDArray[np.int64]:
        """A column of lists (`SPLITS`), those of all shards behind each other."""
        import pyarrow.compute as pc

        return np.asarray(pc.list_flatten(self.table[name]).to_numpy(), dtype=np.int64)

    def lengths(self) -> NDArray[np.int64]:
        """Splits of each shard."""
        import pyarrow.compute as pc

        return np.asarray(pc.list_value_length(self.table["split_records"]).to_numpy(), dtype=np.int64)

    def to_bytes(self, folder: str = "") -> bytes:
        """One parquet object.

        Args:
            folder: URLs in this folder are written relative to it.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        urls = [_relative(url, folder) for url in self.table["url"].to_pylist()]
        table = self.table.set_column(0, "url", pa.array(urls, pa.large_string()))
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({_VERSION_KEY: str(VERSION).encode()}), sink, compression="zstd")
        return bytes(sink.getvalue())

    @classmethod
    def from_bytes(cls, data: bytes, folder: str, url: str) -> IndexTable:
        """The index that `to_bytes` wrote.

        Args:
            data: The object.
            folder: What relative URLs are relative to.
            url: Where it lay, for messages.

        Raises:
            FormatError: It is none, or of a newer version.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        remedy = "make it anew (`streamio index`)"
        try:
            table = pq.read_table(pa.BufferReader(data))
            version = int((table.schema.metadata or {})[_VERSION_KEY])
            if version > VERSION:
                raise FormatError(
                    f"{shown(url)}: this index is of version {version}, and this streamio reads up to {VERSION}: "
                    f"install a newer one, or {remedy}."
                )
            schema = _schema()
            table = table.select(schema.names).cast(schema)
            _check(table)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{shown(url)} is no index, or a damaged one ({first_line(error)}): {remedy}.") from None
        urls = [_absolute(each, folder) for each in table["url"].to_pylist()]
        return cls(table.set_column(0, "url", pa.array(urls, pa.large_string())).sort_by("url").combine_chunks())


def options_text(options: Mapping[str, Any], *, indexed: bool) -> str:
    """The options of a format that counts depend on, as text: equal for equal ones.

    Args:
        options: The format's options.
        indexed: Whether the format knows its counts by itself. The sizes that its footers tell are those of the wanted
            columns; elsewhere columns, types and decoders change nothing of where records begin.
    """
    told = {}
    for name, value in sorted(options.items()):
        if value is None or name == "decode" or (not indexed and name in ("columns", "types")):
            continue
        told[name] = sorted(set(value)) if name == "columns" else value
    return json.dumps(told, default=repr, sort_keys=True)


def _schema() -> pa.Schema:
    import pyarrow as pa

    text, number = pa.large_string(), pa.int64()
    plain = {"url": text, "size": number, "version": text, "format": text, "options": text, "codec": text}
    plain |= {"records": number, "error": text}
    return pa.schema([*plain.items(), *((name, pa.large_list(number)) for name in SPLITS)])


def _check(table: pa.Table) -> None:
    """Raise ValueError where lists that belong together have different lengths, or counts do not sum up."""
    import pyarrow.compute as pc

    lengths = np.asarray(pc.list_value_length(table["split_records"]).to_numpy())
    for name in SPLITS[1:]:
        if (np.asarray(pc.list_value_length(table[name]).to_numpy()) != lengths).any():
            raise ValueError(f"{name} has another number of splits than split_records")
    counts = np.asarray(pc.list_flatten(table["split_records"]).to_numpy())
    if (counts < 0).any() or counts.sum() != np.asarray(table["records"].to_numpy()).sum():
        raise ValueError("its counts do not sum up")


def _relative(url: str, folder: str) -> str:
    inside = folder and url.startswith(f"{folder}/") and "://" not in url[len(folder) + 1 :]
    return url[len(folder) + 1 :] if inside else url


def _absolute(url: str, folder: str) -> str:
    return url if "://" in url else f"{folder}/{url}"
