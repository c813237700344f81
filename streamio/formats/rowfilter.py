"""Applies `filters=` to the row groups and rows of files, by pyarrow's own means.

What becomes of rows that do not match is decided in the loader; here they are marked, with one `Bad` a split.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from streamio.errors import FormatError
from streamio.formats.base import Bad, Buffer, CorruptError
from streamio.formats.filters import Filters, check_truth, evaluated, projected
from streamio.formats.parquet_footer import first_line
from streamio.formats.rows import LeftOut
from streamio.observe.drops import FILTERED, NO_MATCH
from streamio.partitions import Partitions, conflict
from streamio.storage.faults import shown

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq


@dataclass(frozen=True)
class RowFilter:
    """A filter on the columns of files, for formats that can leave out rows.

    Attributes:
        filters: The filter.
        partitions: Keys that it may speak of beside the columns.
    """

    filters: Filters
    partitions: Partitions | None = None
    _names: list[tuple[str, ...]] = field(default_factory=list, init=False, repr=False, compare=False)

    def columns(self, url: str, schema: pa.Schema, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The columns to read of a shard: those that are wanted, and those that the filter needs.

        Args:
            url: The shard.
            schema: Its columns.
            wanted: What is to be delivered; None for all.

        Raises:
            FormatError: The filter does not go with the columns.
        """
        _check_bound(self.filters.expression, self._schema(schema), url)
        clash = next((name for name in self._referred(schema) if name in self._keys and name in schema.names), None)
        if clash is not None:
            raise conflict(url, clash)
        if wanted is None:
            return None
        needed = self._needed(schema)
        for name in needed:
            part = next((column for column in wanted if column.startswith(f"{name}.")), None)
            if part is not None and name not in wanted:
                raise FormatError(f"filters= needs all of the column {name!r}, and columns= names {part!r}: name both.")
        return tuple(dict.fromkeys((*wanted, *needed)))

    def row_groups(self, url: str, metadata: pq.FileMetaData, footer: Buffer) -> tuple[bool, ...]:
        """Of each row group of a shard, whether a row of it may match by its statistics and partition values.

        Args:
            url: The shard.
            metadata: Its decoded footer.
            footer: The end of its bytes, with all of the footer.

        Raises:
            CorruptError: The footer is damaged.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds

        schema = metadata.schema.to_arrow_schema()
        _check_types(metadata, self._needed(schema))
        try:
            # as if it were the file: no more than its end is read
            fragment = ds.ParquetFileFormat().make_fragment(
                pa.BufferReader(footer), partition_expression=self._told_by(url)
            )
            kept = fragment.subset(self.filters.expression, schema=self._schema(schema))
            numbers = {int(group.id) for group in kept.row_groups}
        except (pa.ArrowException, OSError, ValueError):  # statistics that make no sense rule out nothing
            numbers = set(range(metadata.num_row_groups))
        return tuple(number in numbers for number in range(metadata.num_row_groups))

    def rows(
        self, url: str, batch: pa.RecordBatch, wanted: tuple[str, ...] | None, split: str
    ) -> tuple[pa.RecordBatch, LeftOut]:
        """The columns that are wanted, and the rows that do not match.

        Args:
            url: The shard.
            batch: Rows, with the columns that `columns` told.
            wanted: What is to be delivered; None for all.
            split: Which split it is, for positions ("row group 3").

        Raises:
            FormatError: The filter can't be evaluated on these rows.
        """
        import pyarrow as pa

        needed = self._needed(batch.schema)
        arrays = {name: batch.column(name) for name in needed}
        if self.partitions is not None:
            for key, values in self.partitions.columns([url]).items():
                if key not in arrays:
                    arrays[key] = pa.repeat(values[0], batch.num_rows)
        try:
            matches = evaluated(pa.table(arrays), self.filters.expression)
        except (pa.ArrowException, ValueError) as error:
            raise FormatError(f"{shown(url)}, {split}: filters= can't be evaluated: {first_line(error)}") from error
        left_out = LeftOut(np.flatnonzero(~matches), Bad(FILTERED, NO_MATCH, split))
        if wanted is not None:
            heads = {*wanted, *(column.partition(".")[0] for column in wanted)}
            batch = batch.select([name for name in batch.schema.names if name in heads or name not in needed])
        return batch, left_out

    @property
    def _keys(self) -> tuple[str, ...]:
        return () if self.partitions is None else self.partitions.keys

    def _needed(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns of the file that the filter speaks of."""
        return tuple(name for name in self._referred(schema) if name not in self._keys)

    def _referred(self, schema: pa.Schema) -> tuple[str, ...]:
        """All columns that the filter speaks of, keys among them; found once, with any shard's columns."""
        if not self._names:
            terms = [term[0] for group in self.filters.groups for term in group]
            names = tuple(dict.fromkeys(terms or _referred(self.filters.expression, self._schema(schema))))
            if not names:
                raise FormatError("filters= names no column: it would take all rows, or none.")
            self._names.append(names)
        return self._names[0]

    def _schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a file that a filter can speak of, and the partition keys."""
        import pyarrow as pa

        schema = pa.schema([each for each in schema if _filterable(each.type)], schema.metadata)
        for key in () if self.partitions is None else self.partitions.schema:
            if key.name not in schema.names:
                schema = schema.append(key)
        return schema

    def _told_by(self, url: str) -> pc.Expression | None:
        """What the URL says of every row."""
        import pyarrow.compute as pc

        if self.partitions is None:
            return None
        told = None
        for key, values in self.partitions.columns([url]).items():
            one = pc.field(key) == values[0] if values[0].is_valid else pc.field(key).is_null()
            told = one if told is None else told & one
        return told


def _check_types(metadata: pq.FileMetaData, names: tuple[str, ...]) -> None:
    """Raise CorruptError where a chunk of these columns is said to have another type than its column.

    pyarrow would end the process where it meets that in statistics.
    """
    columns = [metadata.schema.column(leaf) for leaf in range(metadata.num_columns)]
    types = {
        leaf: column.physical_type
        for leaf, column in enumerate(columns)
        if any(column.path == name or column.path.startswith(f"{name}.") for name in names)
    }
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if any(group.column(leaf).physical_type != kind for leaf, kind in types.items()):
            raise CorruptError("its footer is damaged: a column has another type there", f"row group {number}")


def _check_bound(expression: pc.Expression, schema: pa.Schema, url: str) -> None:
    """Raise FormatError where an expression does not go with the columns of a shard."""
    import pyarrow as pa

    try:
        kind = projected(schema.empty_table(), expression).type
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError) as error:
        told = ", ".join(f"{each.name}: {each.type}" for each in schema)
        raise FormatError(f"filters= does not go with {shown(url)}: {first_line(error)}. It has {told}.") from error
    check_truth(kind)


@lru_cache(maxsize=256)
def _filterable(kind: pa.DataType) -> bool:
    """Whether Arrow can filter a table with a column of a type, whatever the condition: not with unions, for one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        projected(pa.schema([("column", kind)]).empty_table(), pc.is_valid(pc.field("column")))
    except (pa.ArrowException, NotImplementedError):
        return False
    return True


def _referred(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns that an expression speaks of: pyarrow does not tell, but misses each of them."""

    def needs(names: list[str]) -> list[str]:
        import pyarrow as pa

        rest = [each for each in schema if each.name not in names]
        try:
            projected(pa.schema(rest).empty_table(), expression)
        except pa.ArrowInvalid:
            half = len(names) // 2
            return names if len(names) == 1 else needs(names[:half]) + needs(names[half:])
        return []

    return needs(list(schema.names))
