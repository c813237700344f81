"""The two kinds of decoded rows: Python records in a list, and Arrow columns.

Which slots hold no usable record is found here once, for columns too; what becomes of them is decided in the loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.formats.base import Bad, Block, Places, Record, Row
from streamio.formats.parquet_footer import first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_BLOCK = 256  # rows that are gathered into a block
_LARGE = 4096  # bytes of a row that cost more to copy than a Python call for each of its values


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Slots with a record that is not wanted: perhaps most of a split, for one reason.

    Attributes:
        places: Which, rising, int64.
        why: Stands for each of them.
    """

    places: NDArray[np.int64]
    why: Bad

    def among(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of each place asked for, whether it is one of these."""
        if not len(self.places):
            return np.zeros(len(numbers), bool)
        at = np.searchsorted(self.places, numbers)
        return np.asarray(self.places[np.minimum(at, len(self.places) - 1)] == numbers)


class Records:
    """Rows that are Python objects already.

    Args:
        values: The records; anything where they are bad.
        bad: Slots that hold no record, by place.
    """

    __slots__ = ("_values", "bad")

    def __init__(self, values: list[Any], bad: Mapping[int, Bad] | None = None) -> None:
        self._values = values
        self.bad: Mapping[int, Bad] = bad or {}

    def __len__(self) -> int:
        return len(self._values)

    def take(self, places: Places) -> list[Record]:
        """Records at these places; each place is to be taken once."""
        return picked(self._values, places)


class ArrowRows:
    """Rows that are Arrow columns.

    A row is bad where a value has no Python object: text that is not UTF-8, a date after the year 9999, nanoseconds
    without pandas. That is found at construction, so that `take` never fails.

    Args:
        batch: The columns.
        first: Number of the first row in its shard, for positions.
        bad: Slots that hold no record for reasons of the format's own, by place.
        left_out: Slots with a record that is not wanted; these are not among `bad`.
        validated: Whether `batch.validate(full=True)` has passed.
    """

    __slots__ = ("_batch", "_broken", "bad", "left_out")

    def __init__(
        self,
        batch: pa.RecordBatch,
        first: int = 0,
        bad: Mapping[int, Bad] | None = None,
        left_out: LeftOut | None = None,
        *,
        validated: bool = False,
    ) -> None:
        self._batch = batch = _takable(batch)
        self._broken = {**_unusable(batch, first, validated=validated), **(bad or {})}
        self.bad: Mapping[int, Bad] = self._broken
        self.left_out = left_out
        if left_out is not None and self._broken:
            unwanted = set(left_out.places.tolist())
            self.bad = {place: value for place, value in self._broken.items() if place not in unwanted}

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def take(self, places: Places) -> list[Record]:
        """Records at these places, as `to_pylist` makes them."""
        if self._broken:
            return to_records(self._nulled(places))
        if isinstance(places, slice) or self._batch.nbytes < _LARGE * len(self):
            return to_records(self.arrow(places))
        # Large values are copied once, into Python's objects, and not into other columns before.
        names, wanted = self._batch.schema.names, places.tolist()
        columns = [[column[place].as_py() for place in wanted] for column in self._batch.columns]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def arrow(self, places: Places) -> pa.RecordBatch:
        """The columns at these places; of a slice without a copy."""
        if isinstance(places, slice):
            return self._batch.slice(places.start, places.stop - places.start)
        return self._batch.take(indices(places))

    def _nulled(self, places: Places) -> pa.RecordBatch:
        """The columns with empty rows where they have no Python object."""
        import pyarrow as pa

        wanted = np.arange(places.start, places.stop) if isinstance(places, slice) else np.asarray(places)
        return self._batch.take(pa.array(wanted, mask=np.isin(wanted, list(self._broken))))


def to_records(batch: pa.RecordBatch) -> list[Record]:
    """Each row as a dict of plain Python values, as `to_pylist` gives them."""
    import pyarrow as pa

    if any(pa.types.is_dictionary(field.type) for field in batch.schema):
        # A dictionary's values become Python objects far faster as plain ones, and few are left here.
        columns = [
            column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    records: list[Record] = batch.to_pylist()
    return records


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The table as one batch; a column that is too long for its type's 32-bit offsets gets the type with 64 bits."""
    import pyarrow as pa

    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    columns = [_one_array(column) for column in table.columns]
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, table.schema.metadata))


def blocked(rows: Iterable[Row], size: int = _BLOCK) -> Iterator[Block]:
    """Blocks of rows that come one by one.

    Args:
        rows: The rows, in file order.
        size: Rows in a block.
    """
    iterator = iter(rows)
    while some := list(islice(iterator, size)):
        yield block_of(some)


def block_of(rows: Sequence[Row], seek: np.ndarray[Any, np.dtype[np.int64]] | None = None) -> Block:
    """A block of these rows."""
    index, nbytes, values = zip(*rows, strict=True)
    bad = {place: value for place, value in enumerate(values) if type(value) is Bad}
    return Block(Records(list(values), bad), np.array(index, np.int64), np.array(nbytes, np.int64), seek)


def picked(values: list[Any], places: Places) -> list[Any]:
    """The entries of a list at these places."""
    if isinstance(places, slice):
        return values[places]
    wanted = places.tolist()
    if len(wanted) < 2:
        return [values[place] for place in wanted]
    return list(itemgetter(*wanted)(values))


def indices(places: Any) -> pa.Array:
    """Places as Arrow takes them."""
    import pyarrow as pa

    return pa.array(places, pa.int64())


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return pa.array([], column.type)
    try:
        return pa.concat_arrays(column.chunks)
    except pa.ArrowInvalid:  # more than 2 GiB of text, or more than 2**31 list entries
        return pa.concat_arrays(column.cast(_large(column.type)).chunks)


def _large(kind: pa.DataType) -> pa.DataType:
    """A type of the same values with offsets of 64 bits."""
    import pyarrow as pa

    types = pa.types
    if types.is_string(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary(kind) or types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        return _large(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_large(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_large(field.type)) for field in kind])
    return kind


def _takable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with usual types for views and run ends, of which Arrow can't take single rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not any(_holds_views(kind) for kind in batch.schema.types):
        return batch
    columns = [pc.run_end_decode(c) if pa.types.is_run_end_encoded(c.type) else c for c in batch.columns]
    columns = [column.cast(_large(column.type)) if _holds_views(column.type) else column for column in columns]
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def _holds_views(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind) or types.is_run_end_encoded(kind):
        return True
    return any(_holds_views(kind.field(number).type) for number in range(kind.num_fields))


def _unusable(batch: pa.RecordBatch, first: int, *, validated: bool) -> dict[int, Bad]:
    """Rows with a value that Python has no object for, by place."""
    import pyarrow as pa

    failures = (pa.ArrowException, ValueError, OverflowError, KeyError)  # KeyError: a time zone that is not known
    try:
        if not validated:
            batch.validate(full=True)  # UTF-8 among others
        for column in batch.columns:
            if _is_temporal(column.type) and not _is_usual(column):
                column.to_pylist()
    except failures:
        pass
    else:
        return {}
    bad = {}
    for place in range(batch.num_rows):
        row = batch.slice(place, 1)
        try:
            to_records(row)
        except failures as error:
            bad[place] = Bad("decode", first_line(error), f"record {first + place}")
    return bad


def _is_temporal(kind: pa.DataType) -> bool:
    """Whether values of a type may have no Python object although they are valid."""
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return True
    if pa.types.is_dictionary(kind):
        return _is_temporal(kind.value_type)
    return any(_is_temporal(kind.field(number).type) for number in range(kind.num_fields))


def _is_usual(column: pa.Array) -> bool:
    """Whether all are dates or times that Python surely has; found without making the objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_date32(kind):
        unit, numbers = "D", column.cast(pa.int32())
    elif pa.types.is_date64(kind):
        unit, numbers = "ms", column.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        unit, numbers = kind.unit, column.cast(pa.int64())
        column.drop_null()[:1].to_pylist()  # fails where the time zone is not known
    else:
        return False
    if unit == "ns":  # all of its range are years that Python has
        return _has_pandas() or not np.any(np.asarray(numbers.fill_null(0)) % 1000)
    ends = pc.min_max(numbers).as_py()
    # a day from the ends, for time zones
    low, high = (np.datetime64(day).astype(f"datetime64[{unit}]").astype(int) for day in ("0001-01-02", "9999-12-30"))
    return ends["min"] is None or bool(low <= ends["min"] and ends["max"] <= high)


@lru_cache(maxsize=1)
def _has_pandas() -> bool:
    """Whether nanoseconds become objects of pandas."""
    return find_spec("pandas") is not None
