"""Rows of CSV on their way to records: slots with the bad ones in their place, and text made into values of a type.

Text is cut into rows by pyarrow, in `csv.py`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from streamio.formats.base import Bad, Block, Buffer
from streamio.formats.rows import ArrowRows

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_ROW_OVERHEAD = 128  # bytes that a record takes beside its text
_MARK = "\uffff"  # no character, and never will be
_ESCAPED = re.compile("[\udc80-\udcff]")
_SHOWN = 40  # bytes of a value in a message


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive slots: rows as text, and the bad ones between them.

    Attributes:
        batch: The rows.
        first: Number of the first slot.
        slots: Rows and bad ones together.
        bad: The bad ones by number.
        marked: Whether what is not UTF-8 was marked in the text.
    """

    batch: pa.RecordBatch
    first: int
    slots: int
    bad: dict[int, Bad]
    marked: bool = False

    @classmethod
    def of(cls, batch: pa.RecordBatch, first: int, bad: dict[int, Bad], *, marked: bool) -> Run:
        """A batch with the bad slots before its last row, which are taken out of `bad`."""
        slots = batch.num_rows
        inside = {}
        for number in sorted(bad):
            if number >= first + slots:
                break
            inside[number] = bad.pop(number)
            slots += 1
        return cls(batch, first, slots, inside, marked)

    def without_last(self) -> Run:
        """The same but for the last slot."""
        last = self.first + self.slots - 1
        if last in self.bad:
            bad = {number: value for number, value in self.bad.items() if number != last}
            return replace(self, slots=self.slots - 1, bad=bad)
        return replace(self, slots=self.slots - 1, batch=self.batch.slice(0, self.batch.num_rows - 1))

    def blocks(self, kinds: Mapping[str, pa.DataType], since: int) -> Iterator[Block]:
        """The records as a block, or none.

        Args:
            kinds: Types of the columns that do not stay text.
            since: Number of the first slot wanted.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        behind = max(0, since - self.first)
        if behind >= self.slots:
            return

        batch, bad = self.batch, {number - self.first: value for number, value in self.bad.items()}
        nbytes = np.full(batch.num_rows, _ROW_OVERHEAD, np.int64)
        for column in batch.columns:
            nbytes += _lengths(column)
        if bad:
            lost = np.zeros(self.slots, bool)
            lost[list(bad)] = True
            batch = batch.take(pa.array(np.cumsum(~lost) - 1, pa.int64(), mask=lost))
            of_rows, nbytes = nbytes, np.full(self.slots, _ROW_OVERHEAD, np.int64)
            nbytes[~lost] = of_rows
        for column in batch.columns if self.marked else ():
            for place in np.flatnonzero(pc.match_substring(column, _MARK).fill_null(False)).tolist():
                bad[place] = Bad("decode", "its text is not UTF-8", f"record {self.first + place}")
        columns = []
        for field_, column in zip(batch.schema, batch.columns, strict=True):
            kind = kinds.get(field_.name)
            columns.append(column if kind is None else converted(column, field_.name, kind, self.first, bad))
        batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).slice(behind)
        bad = {place - behind: value for place, value in bad.items() if place >= behind}
        index = np.arange(self.first + behind, self.first + self.slots, dtype=np.int64)
        yield Block(ArrowRows(batch, int(index[0]), bad), index, nbytes[behind:])


def marked(chunks: Generator[Buffer, None, None]) -> Generator[bytes, None, None]:
    """Text with a mark in place of each byte that is not UTF-8.

    pyarrow can't hand over a row with such bytes where it has the wrong number of fields.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    with closing(chunks):
        for chunk in chunks:
            yield _ESCAPED.sub(_MARK, decoder.decode(bytes(chunk))).encode()
        yield _ESCAPED.sub(_MARK, decoder.decode(b"", final=True)).encode()


def _lengths(column: pa.StringArray) -> NDArray[np.int64]:
    """Bytes of each value."""
    import pyarrow.compute as pc

    lengths: NDArray[np.int64] = np.asarray(pc.binary_length(column).fill_null(0), np.int64)
    return lengths


def converted(column: pa.Array, name: str, kind: pa.DataType, first: int, bad: dict[int, Bad]) -> pa.Array:
    """Text as values of a type; rows where that is not possible are added to `bad`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.ascii_trim_whitespace(column)
    text = pc.if_else(pc.is_in(text, value_set=pa.array(_nulls(), pa.string())), pa.scalar(None, pa.string()), text)
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        values = [_value(text[place : place + 1], kind) for place in range(len(text))]
    for place, value in enumerate(values):
        if value is None:
            shown = bytes(column[place].as_buffer())[:_SHOWN].decode(errors="replace")
            bad[place] = Bad("csv", f"{shown!r} in the column {name!r} is no {kind}", f"record {first + place}")
    return pa.concat_arrays(pa.nulls(1, kind) if value is None else value for value in values)


def _value(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """One text as a value; None where it is none."""
    import pyarrow as pa

    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None


@lru_cache(maxsize=1)
def _nulls() -> list[str]:
    """Texts that pyarrow takes for null."""
    from pyarrow import csv

    return list(csv.ConvertOptions().null_values)
