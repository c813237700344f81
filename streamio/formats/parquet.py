"""Parquet: counts from the footer, and row groups decoded from the bytes of the wanted columns, whole or in pieces.

Reading bytes with retries is the source's part; which row groups are read, and in which order, is the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamio.errors import StreamioError
from streamio.formats.base import CorruptError, Counts, Source
from streamio.formats.kept import Kept
from streamio.formats.parquet_footer import Footer, column_chunks, decoded_bytes, first_line, joined, read_footer
from streamio.formats.rows import ArrowRows, one_batch
from streamio.formats.sparsefile import ChunkFile, SparseFile, placed

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from streamio.formats.rowfilter import RowFilter

PIECE = 16 << 20
"""About what a piece of a row group takes decoded, in bytes."""

_SUFFIXES: tuple[str, ...] = (".parquet", ".parq", ".pq")
_BUFFER = 1 << 20  # bytes that pyarrow asks for at once of a column chunk that it reads bit by bit


@dataclass(frozen=True, slots=True)
class Parquet:
    """Parquet (`.parquet`, `.parq`, `.pq`), one split a row group.

    A record is a dict of plain Python values as pyarrow's `to_pylist` gives them, keys in the file's order.

    Args:
        columns: Columns to read: top-level names, or paths into structs (`"meta.lang"`). None reads all.
        filters: Which rows to leave out, by statistics of row groups and by their values.
    """

    columns: tuple[str, ...] | None = None
    filters: RowFilter | None = None
    _footers: Kept[Footer] = field(default_factory=Kept, init=False, repr=False, compare=False)

    name = "parquet"
    suffixes = _SUFFIXES

    def count(self, source: Source) -> Counts:
        """Counts from the footer, which is one read of 64 KiB, and a second one where it is longer.

        Raises:
            CorruptError: The file is not parquet, is cut short, or its footer is damaged or encrypted.
            FormatError: A wanted column is not in the file, or two columns of the file have one name.
        """
        footer = self._footer(source)
        nbytes, wire = [], []
        for split in range(len(footer.records)):
            nbytes.append(decoded_bytes(footer, split))
            wire.append(sum(stop - start for start, stop in column_chunks(source, footer, split)))
        return Counts(footer.records, tuple(nbytes), tuple(wire), footer.kept)

    def names(self, source: Source) -> list[str]:
        """The top-level columns of a shard, wanted or not."""
        return list(self._footer(source).metadata.schema.to_arrow_schema().names)

    def ranges(self, source: Source, split: int) -> list[tuple[int, int]]:
        """The bytes of the wanted column chunks of one row group, those near each other together.

        Args:
            source: The shard.
            split: Number of the row group.

        Raises:
            CorruptError: The footer is damaged.
        """
        footer = self._footer(source)
        return [] if footer.whole else joined(column_chunks(source, footer, split))

    def load(self, source: Source, split: int) -> ArrowRows:
        """Read the column chunks of one row group and decode them whole.

        Args:
            source: The shard.
            split: Number of the row group.

        Raises:
            CorruptError: The row group can't be decoded, or holds more or fewer records than the footer says.
        """
        import pyarrow as pa

        footer = self._footer(source)
        whole = footer.whole
        file = pa.BufferReader(whole) if whole else _file(source, column_chunks(source, footer, split))
        with _corrupt(split):
            # other row groups are decoded at the same time by other threads: more of them would only contend
            table = self._reader(file, footer).read_row_group(split, columns=footer.columns, use_threads=False)
            if table.num_rows == footer.records[split]:
                return self._rows(source, one_batch(table), split, footer.first(split))
        raise _miscounted(table.num_rows, footer, split)

    def pieces(self, source: Source, split: int) -> Iterator[ArrowRows]:
        """Decode one row group in pieces of some `PIECE` bytes, reading each column's bytes as they are needed.

        All pieces have the same number of rows, which follows from the footer, but the last one, which has the rest.

        Args:
            source: The shard.
            split: Number of the row group.

        Raises:
            CorruptError: What follows can't be decoded, or the row group holds more or fewer records than the footer
                says. Pieces before that have been yielded.
        """
        import pyarrow as pa

        footer = self._footer(source)
        chunks = column_chunks(source, footer, split)
        records, first = footer.records[split], footer.first(split)
        rows = max(1, records * PIECE // max(1, decoded_bytes(footer, split)))
        done = 0
        with closing(ChunkFile(source, chunks)) as file:
            reader = self._reader(pa.PythonFile(file, mode="r"), footer, buffer_size=_BUFFER)
            for batch in _cut(reader, split, rows, footer.columns):
                if batch.num_rows != min(rows, records - done):
                    raise _miscounted(done + batch.num_rows, footer, split)
                with _corrupt(split):
                    piece = self._rows(source, batch, split, first + done)
                yield piece
                done += len(piece)
        if done != records:
            raise _miscounted(done, footer, split)

    def _rows(self, source: Source, batch: pa.RecordBatch, split: int, first: int) -> ArrowRows:
        if self.filters is None:
            return ArrowRows(batch, first)
        batch, left_out = self.filters.rows(source.url, batch, self.columns, f"row group {split}")
        return ArrowRows(batch, first, left_out=left_out)

    def _reader(self, file: Any, footer: Footer, buffer_size: int = 0) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        # without pre_buffer, which reads by threads of its own, each of which would wait for the interpreter
        return pq.ParquetFile(
            file,
            metadata=footer.metadata,
            pre_buffer=False,
            buffer_size=buffer_size,
            page_checksum_verification=True,
        )

    def _footer(self, source: Source) -> Footer:
        footer = self._footers.get(source)
        if footer is not None:
            return footer
        with self._footers.making(source):
            footer = self._footers.get(source)
            if footer is None:
                footer = read_footer(source, self.columns, self.filters)
                self._footers.put(source, footer, footer.weight)
            return footer


def _cut(reader: pq.ParquetFile, split: int, rows: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """A row group as batches of so many rows: pyarrow's may be shorter where a column comes in several arrays."""
    import pyarrow as pa

    with _corrupt(split):
        batches = reader.iter_batches(rows, row_groups=[split], columns=columns, use_threads=False)
    waiting: list[pa.RecordBatch] = []
    while True:
        with _corrupt(split):
            while sum(batch.num_rows for batch in waiting) < rows:
                batch = next(batches, None)
                if batch is None:
                    break
                waiting.append(batch)
            table = pa.Table.from_batches(waiting, reader.schema_arrow if not waiting else None)
            piece = one_batch(table[:rows])
            waiting = table[rows:].to_batches()
        if not piece.num_rows:
            return
        yield piece


def _file(source: Source, chunks: list[tuple[int, int]]) -> Any:
    """The shard as a file for pyarrow, of which these column chunks are in memory."""
    import pyarrow as pa

    ranges = joined(chunks)
    data = source.read_many(ranges)
    # pyarrow reads from the starts of chunks on, and never past the end of its file, whatever a damaged footer says
    if len(ranges) == 1 and min(chunks)[0] == ranges[0][0]:
        buffer = placed(data[0], ranges[0][0])
        if buffer is not None:
            return pa.BufferReader(buffer)
    file = SparseFile(source)
    for (start, _), part in zip(ranges, data, strict=True):
        file.add(start, part)
    return pa.PythonFile(file, mode="r")


@contextmanager
def _corrupt(split: int) -> Iterator[None]:
    """Turn what pyarrow raises into `CorruptError`; errors of the source pass."""
    import pyarrow as pa

    try:
        yield
    except StreamioError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise CorruptError(f"can't be decoded: {first_line(error)}", f"row group {split}") from error


def _miscounted(found: int, footer: Footer, split: int) -> CorruptError:
    return CorruptError(f"{found} records, the footer says {footer.records[split]}", f"row group {split}")
