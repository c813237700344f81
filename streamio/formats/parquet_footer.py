"""Parquet footers: read and checked, and the byte ranges that they tell.

Rows are decoded in `parquet.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamio.formats.base import Buffer, CorruptError, Source
from streamio.formats.columns import missing_column, repeated_column
from streamio.formats.sparsefile import SparseFile

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from streamio.formats.rowfilter import RowFilter

_TAIL = 1 << 16  # bytes read in the hope that they hold the whole footer
_NEAR = 1 << 19  # a gap that costs less to read than another request does
_WASTE = 1 << 12  # bytes of gaps that are read of a row group at most, or a twentieth of what is wanted
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}  # bytes of a decoded value
_MOST = 1 << 48  # a guess is never beyond this, whatever a damaged footer says


@dataclass(frozen=True, slots=True)
class Footer:
    """What is known of a shard before its rows are read.

    Attributes:
        metadata: The decoded footer, walked by pyarrow without an error.
        records: Records of each row group.
        columns: The columns that are read, of `filters=` too, in the file's order; None for all.
        leaves: Numbers of their column chunks.
        kept: Whether each row group may hold a row that `filters=` takes; () without them.
        whole: All of a small file, which came along with its footer; else empty.
    """

    metadata: pq.FileMetaData
    records: tuple[int, ...]
    columns: list[str] | None
    leaves: tuple[int, ...]
    kept: tuple[bool, ...]
    whole: Buffer

    @property
    def weight(self) -> int:
        """About what it takes in memory, in bytes."""
        return int(self.metadata.serialized_size) + len(self.whole)

    def first(self, split: int) -> int:
        """Number of a row group's first record in the shard."""
        return sum(self.records[:split])


def read_footer(source: Source, columns: tuple[str, ...] | None, filters: RowFilter | None = None) -> Footer:
    """Read and check a footer: one read of 64 KiB, and a second one where it is longer.

    Args:
        source: The shard.
        columns: The wanted columns; None for all.
        filters: What the rows must match.

    Raises:
        CorruptError: The file is not parquet, is cut short, or its footer is damaged or encrypted.
        FormatError: A wanted column is not in the file, two wanted columns have one name, or the filter does not go
            with the columns.
    """
    metadata, names, end, whole = _read(source)
    records = tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    if sum(records) != metadata.num_rows or min(records, default=0) < 0:
        raise CorruptError("its footer is damaged: its row groups do not add up to its records")
    leaves = _leaves(metadata, names, columns, source.url)
    kept: tuple[bool, ...] = ()
    if filters is not None:
        columns = filters.columns(source.url, metadata.schema.to_arrow_schema(), columns)
        leaves = _leaves(metadata, names, columns, source.url)
        kept = filters.row_groups(source.url, metadata, end)
    return Footer(metadata, records, _in_order(columns, names), leaves, kept, whole)


def column_chunks(source: Source, footer: Footer, split: int) -> list[tuple[int, int]]:
    """Of each wanted column chunk of a row group the first byte, and the byte after the last.

    Raises:
        CorruptError: One is said to lie outside the file.
    """
    group = footer.metadata.row_group(split)
    chunks = []
    for leaf in footer.leaves:
        chunk = group.column(leaf)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        chunks.append((start, start + chunk.total_compressed_size))
    if not all(0 <= start <= stop <= source.size for start, stop in chunks):
        raise CorruptError("its bytes are said to lie outside the file", f"row group {split}")
    return chunks


def decoded_bytes(footer: Footer, split: int) -> int:
    """What the wanted columns of a row group take decoded, at about."""
    group = footer.metadata.row_group(split)
    return sum(_decoded(group.column(leaf)) for leaf in footer.leaves)


def joined(chunks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges that are read for these chunks: near ones as one, the narrowest gaps first, as far as waste goes."""
    bounds = sorted((start, stop) for start, stop in chunks if start < stop)
    spare = max(_WASTE, sum(stop - start for start, stop in bounds) // 20)
    read = set()  # gaps, by the number of the range before it
    for gap, number in sorted((bounds[n + 1][0] - bounds[n][1], n) for n in range(len(bounds) - 1)):
        if gap > min(spare, _NEAR):
            break
        spare -= max(gap, 0)
        read.add(number)
    ranges: list[tuple[int, int]] = []
    for number, (start, stop) in enumerate(bounds):
        if number - 1 in read:
            ranges[-1] = (ranges[-1][0], max(stop, ranges[-1][1]))
        else:
            ranges.append((start, stop))
    return ranges


def _decoded(chunk: Any) -> int:
    """Bytes that a column chunk takes decoded, at about: with a dictionary that can be far more than its pages hold."""
    pages = int(chunk.total_uncompressed_size)
    if not chunk.has_dictionary_page:
        return pages
    width = _WIDTHS.get(chunk.physical_type, 0)
    if chunk.physical_type == "BYTE_ARRAY" and chunk.is_stats_set and chunk.statistics.has_min_max:
        with suppress(ValueError, OSError, NotImplementedError):  # values that Python can't hold
            width = (_length(chunk.statistics.min) + _length(chunk.statistics.max)) // 2 + 8
    return max(pages, min(width * int(chunk.num_values), _MOST))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes)) else 8


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _read(source: Source) -> tuple[pq.FileMetaData, list[str], Buffer, Buffer]:
    """The footer, the names of the top-level columns, the footer's bytes, and the whole file where it came along."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = source.size
    if size < 12:
        raise CorruptError(f"not a parquet file: it has {size} bytes" if size else "the file is empty")
    start = max(0, size - _TAIL)
    tail = source.read(start, size)
    magic = tail[-4:]
    if magic == b"PARE":
        raise CorruptError("its footer is encrypted, which streamio does not read")
    if magic != b"PAR1":
        raise CorruptError("not a parquet file, or cut short: it does not end in PAR1")
    begin = size - 8 - int.from_bytes(tail[-8:-4], "little")
    if begin < 4:
        raise CorruptError("its footer is damaged: it is said to be longer than the file")
    footer = b"".join((source.read(begin, start), tail)) if begin < start else tail
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
        names = list(metadata.schema.to_arrow_schema().names)
        _walk(metadata)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise CorruptError(f"its footer can't be decoded: {first_line(error)}") from error
    return metadata, names, footer, (b"" if start else tail)


def _walk(metadata: pq.FileMetaData) -> None:
    """Have pyarrow look at every column chunk's metadata where it catches what is wrong with them.

    `RowGroupMetaData.column` does not: it ends the process on a damaged footer, and on an encrypted column. Here the
    reader plans its reads, which looks at all of them, and is stopped at the first.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pa.PythonFile(SparseFile(_NoSource()), mode="r")
    reader = pq.ParquetFile(file, metadata=metadata, pre_buffer=True)
    try:
        reader.read_row_groups(range(metadata.num_row_groups), use_threads=False)
    except _StopReadingError as error:
        error.__traceback__ = None  # pyarrow keeps the error for ever, and a traceback all that is in its frames


class _StopReadingError(Exception):
    pass


class _NoSource:
    size = 1 << 62

    def read(self, start: int, stop: int) -> bytes:
        raise _StopReadingError


def _in_order(columns: tuple[str, ...] | None, names: list[str]) -> list[str] | None:
    """Wanted columns in the file's order: pyarrow's own differs between its versions."""
    if columns is None:
        return None
    places = {name: place for place, name in enumerate(names)}

    def place(column: str) -> int:
        while column not in places:  # a path into a struct: that of the struct
            column = column.rpartition(".")[0]
        return places[column]

    return sorted(columns, key=place)


def _leaves(metadata: pq.FileMetaData, names: list[str], columns: tuple[str, ...] | None, url: str) -> tuple[int, ...]:
    """The numbers of the column chunks that hold the wanted columns."""
    wanted = set(names if columns is None else columns)
    twice = [name for name, count in Counter(names).items() if count > 1 and name in wanted]
    if twice:
        raise repeated_column(url, twice[0])
    if columns is None:
        return tuple(range(metadata.num_columns))
    found: set[str] = set()
    leaves = []
    for number in range(metadata.num_columns):
        path = metadata.schema.column(number).path
        ends = [place for place, letter in enumerate(path) if letter == "."]
        hits = {path[:end] for end in [*ends, len(path)]} & wanted
        if hits:
            found |= hits
            leaves.append(number)
    missing = [column for column in columns if column not in found]
    if missing:
        raise missing_column(url, missing[0], names)
    return tuple(leaves)
