"""Decoded slots in the order of delivery, as Python records or as Arrow columns, and how they are cut and joined.

No I/O, and nothing of plans: which slots they are is told by numbers that come along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamio.errors import FormatError
from streamio.formats.base import Bad, Columns, Places, Rows
from streamio.formats.rows import indices, picked, to_records

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from streamio.formats.rows import LeftOut

#: Records in a list (after a map: anything), or columns.
Values: TypeAlias = "list[Any] | pa.RecordBatch"


_AT_ONCE = 256


@dataclass(slots=True)
class Chunk:
    """A run of slots.

    Attributes:
        values: What the good ones hold.
        split: The split of each slot, int64.
        number: Its number in the split, int64.
        index: Its `__index__`, int64.
        bad: Slots without a record, by place.
        place: For each slot its place in `values`, -1 where it is bad; None where all are good and in order.
        left_out: Why slots without a record are not among `bad`, by split.
    """

    values: Values
    split: NDArray[np.int64]
    number: NDArray[np.int64]
    index: NDArray[np.int64]
    bad: Mapping[int, Bad]
    place: NDArray[np.int64] | None = None
    left_out: Mapping[int, Bad] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.split)

    def cut(self, low: int, high: int) -> Chunk:
        """The slots [low, high); columns are not copied."""
        if low == 0 and high >= len(self):
            return self
        part = slice(low, high)
        split, number, index = self.split[part], self.number[part], self.index[part]
        if self.place is None:
            return Chunk(sliced(self.values, low, high), split, number, index, self.bad)
        bad = {slot - low: bad for slot, bad in self.bad.items() if low <= slot < high}
        return Chunk(self.values, split, number, index, bad, self.place[part], self.left_out)

    @property
    def lost(self) -> int:
        """Slots without a record."""
        return 0 if self.place is None else int((self.place < 0).sum())

    def losses(self) -> list[tuple[int, Bad, int]]:
        """Splits of the slots without a record, with why, and how many."""
        if self.place is None:
            return []
        counts = Counter((int(self.split[slot]), bad) for slot, bad in self.bad.items())
        if self.left_out:
            unwanted = self.place < 0
            unwanted[list(self.bad)] = False
            splits, many = np.unique(self.split[unwanted], return_counts=True)
            counts.update({(one, self.left_out[one]): n for one, n in zip(splits.tolist(), many.tolist(), strict=True)})
        return [(split, bad, count) for (split, bad), count in counts.items()]

    def good_slots(self) -> list[int]:
        """The places of the good slots, in order."""
        return list(range(len(self))) if self.place is None else np.flatnonzero(self.place >= 0).tolist()

    def good(self) -> Values:
        """What the good slots hold, in order."""
        if self.place is None:
            return self.values
        return pick(self.values, self.place[self.place >= 0])


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Several runs as one."""
    if len(chunks) == 1:
        return chunks[0]
    values = join([chunk.values for chunk in chunks])
    split, number, index = (
        np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("split", "number", "index")
    )
    if all(chunk.place is None for chunk in chunks):
        return Chunk(values, split, number, index, {})
    bad: dict[int, Bad] = {}
    left_out: dict[int, Bad] = {}
    places = []
    slots = held = 0
    for chunk in chunks:
        place = np.arange(len(chunk), dtype=np.int64) if chunk.place is None else chunk.place
        places.append(np.where(place >= 0, place + held, -1))
        bad.update((slots + slot, value) for slot, value in chunk.bad.items())
        left_out |= chunk.left_out
        slots += len(chunk)
        held += len(chunk.values)
    return Chunk(values, split, number, index, bad, np.concatenate(places), left_out)


def gathered(
    held: Mapping[int, Rows | Bad],
    split: NDArray[np.int64],
    number: NDArray[np.int64],
    first: NDArray[np.int64],
    *,
    columnar: bool,
) -> Chunk:
    """The slots with these numbers in these splits, in any order.

    Args:
        held: The decoded splits, or why one could not be.
        split: The split of each slot.
        number: Its number there.
        first: `__index__` of each split's slot 0, where rows do not tell it.
        columnar: Whether columns are wanted where the rows have them.
    """
    order: NDArray[np.int64] | None = None
    sorted_split, sorted_number = split, number
    if (split[1:] < split[:-1]).any() or (np.diff(number)[split[1:] == split[:-1]] != 1).any():
        order = np.argsort(split, kind="stable")
        sorted_split, sorted_number = split[order], number[order]
    cuts = [0, *(np.flatnonzero(np.diff(sorted_split)) + 1).tolist(), len(split)]
    parts: list[Values] = []
    bad: dict[int, Bad] = {}  # by place in sorted order
    left_out: dict[int, Bad] = {}
    fine = np.ones(len(split), bool)
    index = first[sorted_split] + sorted_number
    for low, high in pairwise(cuts):
        rows = held[int(sorted_split[low])]
        numbers = sorted_number[low:high]
        if isinstance(rows, Bad):
            bad.update(dict.fromkeys(range(low, high), rows))
            fine[low:high] = False
            continue
        index_of = getattr(rows, "index_of", None)  # as `Numbered` has it: to ask for a protocol takes longer
        if index_of is not None:
            index[low:high] = index_of(numbers)
        places: Places = numbers if order is not None else slice(int(numbers[0]), int(numbers[-1]) + 1)
        if rows.bad:
            told = [rows.bad.get(one) for one in numbers.tolist()]
            bad.update((low + at, value) for at, value in enumerate(told) if value is not None)
            fine[low:high] = [value is None for value in told]
        unwanted: LeftOut | None = getattr(rows, "left_out", None)
        if unwanted is not None:
            left_out[int(sorted_split[low])] = unwanted.why
            fine[low:high] &= ~unwanted.among(numbers)
        if not fine[low:high].all():
            places = numbers[fine[low:high]]
        parts.append(taken(rows, places, columnar=columnar))
    values = join(parts)
    whole = bool(fine.all())
    if order is None and whole:
        return Chunk(values, split, number, index, {})
    place = numbered(fine)
    if order is not None:
        place, index = (_unsorted(each, order) for each in (place, index))
        bad = {slot: bad[at] for at, slot in enumerate(order.tolist()) if at in bad} if bad else bad
    if whole:  # in the order of delivery at once: slices of it are then without a copy
        return Chunk(pick(values, place), split, number, index, {})
    return Chunk(values, split, number, index, bad, place, left_out)


def _unsorted(values: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    back = np.empty_like(values)
    back[order] = values
    return back


def numbered(fine: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each slot its place among the good ones, -1 where it is none of them."""
    return np.where(fine, np.cumsum(fine) - 1, -1)


def with_records(chunk: Chunk) -> Chunk:
    """The same slots with records in place of columns, made some at a time, so that other threads get their turns."""
    if isinstance(chunk.values, list):
        return chunk
    batch = chunk.values
    values = [record for low in range(0, len(batch), _AT_ONCE) for record in to_records(batch.slice(low, _AT_ONCE))]
    return replace(chunk, values=values)


def taken(rows: Rows, places: Places, *, columnar: bool) -> Values:
    """Rows at these places, none of them bad: as columns where wanted and possible."""
    return rows.arrow(places) if columnar and isinstance(rows, Columns) else rows.take(places)


def sliced(values: Values, low: int, high: int) -> Values:
    """The values [low, high)."""
    return values[low:high] if isinstance(values, list) else values.slice(low, high - low)


def pick(values: Values, places: NDArray[np.int64]) -> Values:
    """The values at these places."""
    if isinstance(values, list):
        return picked(values, places)
    return values.take(indices(places))


def join(parts: Sequence[Values]) -> Values:
    """Values behind each other; columns and records together become records.

    Raises:
        FormatError: Columns of one name have types that do not go together.
    """
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) < 2:
        return parts[0] if parts else []
    if all(not isinstance(part, list) for part in parts):
        return _join_batches(parts)
    return [value for part in parts for value in (part if isinstance(part, list) else to_records(part))]


def _join_batches(batches: Sequence[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    if all(batch.schema.equals(batches[0].schema) for batch in batches[1:]):
        table = pa.Table.from_batches(batches)
    else:
        try:
            table = pa.concat_tables(map(pa.Table.from_batches, ([b] for b in batches)), promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise FormatError(
                f"shards have columns of one name and types that do not go together: {error}. Name the columns that "
                'you want by columns=, or use output="records".'
            ) from error
    if not table.num_columns:
        return batches[0].slice(0, 0)
    return table.combine_chunks().to_batches()[0]
