"""Parquet: counts from the footer, and one row group at a time decoded from the bytes of the wanted columns.

Reading bytes with retries is the source's part; which row groups are read, and in which order, is the plan's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamio.errors import StreamioError
from streamio.formats.base import Bad, CorruptError, Counts, Record, Source
from streamio.formats.parquet_footer import Footer, Footers, column_chunks, first_line, joined, read_footer
from streamio.formats.sparsefile import SparseFile

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES: tuple[str, ...] = (".parquet", ".parq", ".pq")


@dataclass(frozen=True, slots=True)
class Parquet:
    """Parquet (`.parquet`, `.parq`, `.pq`), one split a row group.

    A record is a dict of plain Python values as pyarrow's `to_pylist` gives them, keys in the file's order.

    Args:
        columns: Columns to read: top-level names, or paths into structs (`"meta.lang"`). None reads all.
    """

    columns: tuple[str, ...] | None = None
    _footers: Footers = field(default_factory=Footers, init=False, repr=False, compare=False)

    name = "parquet"
    suffixes = _SUFFIXES

    def count(self, source: Source) -> Counts:
        """Counts from the footer, which is one read of 64 KiB, and a second one where it is longer.

        Raises:
            CorruptError: The file is not parquet, is cut short, or its footer is damaged or encrypted.
            FormatError: A wanted column is not in the file, or two columns of the file have one name.
        """
        footer = self._footer(source)
        metadata = footer.metadata
        records, nbytes, wire = [], [], []
        for split in range(metadata.num_row_groups):
            chunks = column_chunks(source, footer, split)
            records.append(metadata.row_group(split).num_rows)
            nbytes.append(sum(size for _, _, size in chunks))
            wire.append(sum(stop - start for start, stop in joined(chunks)))
        return Counts(tuple(records), tuple(nbytes), tuple(wire))

    def load(self, source: Source, split: int) -> ParquetRows:
        """Read the column chunks of one row group and decode them whole.

        Args:
            source: The shard.
            split: Number of the row group.

        Raises:
            CorruptError: The row group can't be decoded, or holds more or fewer records than the footer says.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        footer = self._footer(source)
        metadata = footer.metadata
        records = metadata.row_group(split).num_rows
        first = sum(metadata.row_group(before).num_rows for before in range(split))
        if not records:
            return ParquetRows([], 0, first)
        position = f"row group {split}"
        file = SparseFile(source)
        if footer.whole:
            file.add(0, footer.whole)
        else:
            ranges = joined(column_chunks(source, footer, split))
            for (start, _), data in zip(ranges, source.read_many(ranges), strict=True):
                file.add(start, data)
        columns = None if self.columns is None else list(self.columns)
        try:
            reader = pq.ParquetFile(pa.PythonFile(file, mode="r"), metadata=metadata, page_checksum_verification=True)
            # other row groups are decoded at the same time by other workers: threads would only contend
            table = reader.read_row_group(split, columns=columns, use_threads=False)
        except StreamioError:
            raise
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            raise CorruptError(f"can't be decoded: {first_line(error)}", position) from error
        if table.num_rows != records:
            raise CorruptError(f"{table.num_rows} records, the footer says {records}", position)
        return ParquetRows(table.to_batches(), records, first)

    def _footer(self, source: Source) -> Footer:
        footer = self._footers.get(source)
        if footer is None:
            footer = read_footer(source, self.columns)
            self._footers.put(source, footer)
        return footer


class ParquetRows:
    """The decoded records of one row group.

    Args:
        batches: Its columns, mostly as one batch.
        records: Records in all batches.
        first: Number of the first one in the shard.
    """

    def __init__(self, batches: list[pa.RecordBatch], records: int, first: int) -> None:
        self._batches = batches
        self._records = records
        self._first = first

    def __len__(self) -> int:
        return self._records

    def take(self, indices: Sequence[int]) -> list[Record | Bad]:
        """Records at these places, in this order.

        A record with a value that Python has no object for (text that is not UTF-8, a date after the year
        9999) comes as `Bad("decode", ...)`.

        Args:
            indices: Places in the row group, 0 to `len(self) - 1`, repeated or not.
        """
        if len(indices) == 0:
            return []
        if len(self._batches) > 1:  # text of more than 2 GiB
            return [record for index in indices for record in self._one(int(index))]
        batch = self._batches[0]
        import pyarrow as pa

        try:
            return _to_dicts(batch.take(pa.array(indices, pa.int64())))
        except (ValueError, OverflowError):
            return [record for index in indices for record in self._one(int(index))]

    def _one(self, index: int) -> list[Record | Bad]:
        if not 0 <= index < self._records:
            raise IndexError(f"record {index} of a row group of {self._records}")
        place = index
        for batch in self._batches:
            if place < batch.num_rows:
                try:
                    return _to_dicts(batch.slice(place, 1))
                except (ValueError, OverflowError) as error:
                    return [Bad("decode", first_line(error), f"record {self._first + index}")]
            place -= batch.num_rows
        raise AssertionError("batches hold fewer records than were counted")


def _to_dicts(batch: pa.RecordBatch) -> list[Any]:
    import pyarrow as pa

    # a dictionary's values become Python objects far faster as plain ones, and few are left here
    columns = [
        column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column for column in batch.columns
    ]
    records: list[Any] = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return records
