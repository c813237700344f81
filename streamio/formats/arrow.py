"""Arrow IPC: files (Feather version 2 among them) and streams, one record batch at a time.

Where the batches lie is found in `arrow_layout.py`; reading bytes with retries is the source's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from streamio.errors import StreamioError
from streamio.formats.arrow_layout import Layout, head_of, read_layout
from streamio.formats.arrow_messages import Block, Message
from streamio.formats.base import Buffer, CorruptError, Counts, Source
from streamio.formats.columns import check_columns
from streamio.formats.kept import Kept
from streamio.formats.parquet_footer import first_line, joined
from streamio.formats.rows import ArrowRows, LeftOut
from streamio.formats.sparsefile import SparseFile

if TYPE_CHECKING:
    import pyarrow as pa

    from streamio.formats.rowfilter import RowFilter

_SUFFIXES: tuple[str, ...] = (".arrow", ".arrows", ".feather", ".ipc")
_COMPRESSED = 3  # what compressed buffers are taken to grow by; they say it themselves only where they begin


@dataclass(frozen=True, slots=True)
class Arrow:
    """Arrow IPC files and streams (`.arrow`, `.arrows`, `.feather`, `.ipc`), one split a record batch.

    A record is a dict of plain Python values as pyarrow's `to_pylist` gives them, keys in the file's order.

    Args:
        columns: Top-level columns to read. None reads all.
        filters: Which rows to leave out, by their values: there are no statistics that would save a read.
    """

    columns: tuple[str, ...] | None = None
    filters: RowFilter | None = None
    _layouts: Kept[Layout] = field(default_factory=Kept, init=False, repr=False, compare=False)
    _dictionaries: Kept[dict[Block, Buffer]] = field(default_factory=Kept, init=False, repr=False, compare=False)

    name = "arrow"
    suffixes = _SUFFIXES

    def count(self, source: Source) -> Counts:
        """Counts from the heads of the batches: of a file all at once, of a stream one after the other.

        Raises:
            CorruptError: It is neither an Arrow file nor a stream, or is cut short, or damaged.
            FormatError: A wanted column is not there, two have one name, or it is Feather version 1 or big-endian.
        """
        layout = self._layout(source, heads=True)
        wanted = _wanted(source, layout, self.columns, self.filters)
        nbytes, wire = [], []
        for split, (block, message) in enumerate(zip(layout.batches, layout.messages, strict=True)):
            taken = sum(stop - start for start, stop in _spans(block, message, wanted))
            nbytes.append(taken * _COMPRESSED if message.compressed else taken)
            wire.append(sum(stop - start for start, stop in _ranges(layout, split, wanted)))
        return Counts(tuple(message.records for message in layout.messages), tuple(nbytes), tuple(wire))

    def names(self, source: Source) -> list[str]:
        """The top-level columns of a shard, wanted or not."""
        return list(_schema(self._layout(source, heads=False)).names)

    def load(self, source: Source, split: int) -> ArrowRows:
        """Read one record batch and decode it.

        Args:
            source: The shard.
            split: Number of the record batch.

        Raises:
            CorruptError: It can't be decoded, or its offsets and the like point outside of its values.
        """
        layout = self._layout(source, heads=self.columns is not None)
        wanted = _wanted(source, layout, self.columns, self.filters)
        dictionaries = self._dictionary_batches(source, layout, split)
        message = _read(source, layout, split, wanted)
        with _corrupt(split):
            batch = _decoded(layout.schema, dictionaries, message, wanted.fields)
            valid = True
            try:
                batch.validate(full=True)
            except ValueError:  # text that is not UTF-8 costs its record only, but nothing else must be wrong
                _check_all_but_text(layout.schema, dictionaries, message, wanted.fields)
                valid = False
            left_out: LeftOut | None = None
            if self.filters is not None:
                batch, left_out = self.filters.rows(source.url, batch, self.columns, f"record batch {split}")
            rows = ArrowRows(batch, validated=valid)
        if rows.bad:  # their numbers in the shard are worth reading the heads before
            first = sum(head.records for head in layout.heads(source, range(split)))
            bad = {place: replace(value, position=f"record {first + place}") for place, value in rows.bad.items()}
            rows = ArrowRows(batch, bad=bad, validated=True)
        return rows if left_out is None else ArrowRows(batch, bad=rows.bad, left_out=left_out, validated=True)

    def ranges(self, source: Source, split: int) -> list[tuple[int, int]]:
        """The byte ranges that `load` will read at once, if dictionaries are at hand; none of a small shard.

        Raises:
            CorruptError: As `count`.
        """
        layout = self._layout(source, heads=self.columns is not None)
        return [] if layout.whole else _ranges(layout, split, _wanted(source, layout, self.columns, self.filters))

    def _layout(self, source: Source, *, heads: bool) -> Layout:
        """Where the batches lie, and what their heads say if that is wanted."""
        with self._layouts.making(source):
            layout = self._layouts.get(source)
            if layout is None or (heads and not layout.messages and layout.batches):
                layout = layout or read_layout(source)
                if heads:
                    layout = replace(layout, messages=tuple(layout.heads(source, range(len(layout.batches)))))
                self._layouts.put(source, layout, layout.weight)
            return layout

    def _dictionary_batches(self, source: Source, layout: Layout, split: int) -> list[Buffer]:
        """The messages of the dictionaries of a batch; they are kept, as other batches mostly have the same."""
        needed = layout.dictionaries[split]
        known = self._dictionaries.get(source) or {}
        missing = [block for block in needed if block not in known]
        if missing:
            read = layout.read(source, [(block.start, block.stop) for block in missing])
            known = {**known, **dict(zip(missing, read, strict=True))}
            known = {block: known[block] for block in needed}
            self._dictionaries.put(source, known, sum(map(len, known.values())))
        return [known[block] for block in needed]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which columns are wanted.

    Attributes:
        fields: Their numbers; None for all.
        buffers: First and last buffer, excluded, of each; None where all are wanted, or where it can't be told.
        total: Buffers of all columns.
    """

    fields: list[int] | None
    buffers: list[tuple[int, int]] | None = None
    total: int = 0


def _wanted(
    source: Source, layout: Layout, columns: tuple[str, ...] | None, filters: RowFilter | None = None
) -> _Wanted:
    """Find the wanted columns in the schema."""
    schema = _schema(layout)
    there, kinds = schema.names, schema.types
    if filters is not None:
        columns = filters.columns(source.url, schema, columns)
    check_columns(source.url, there if columns is None else columns, there)
    if columns is None:
        return _Wanted(None)
    fields = [number for number, name in enumerate(there) if name in columns]
    counts = [_buffers(kind) for kind in kinds]
    if any(count is None for count in counts):
        return _Wanted(fields)
    ends = list(accumulate((count or 0 for count in counts), initial=0))
    return _Wanted(fields, [(ends[number], ends[number + 1]) for number in fields], ends[-1])


def _schema(layout: Layout) -> pa.Schema:
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(layout.schema))
        schema.names  # noqa: B018 - fails where one is not UTF-8
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptError(f"its schema can't be decoded: {first_line(error)}") from error
    return schema


def _buffers(kind: pa.DataType) -> int | None:
    """How many buffers a column of a type has in a message; None for the rarer types, where it is not so simple."""
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _buffers(kind.storage_type)
    if types.is_null(kind):
        return 0
    if types.is_dictionary(kind):
        return 2
    children = [_buffers(kind.field(number).type) for number in range(kind.num_fields)]
    simple = types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind)
    text = types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)
    if not (simple or text or lists or types.is_struct(kind) or types.is_fixed_size_list(kind)):
        return None
    if any(count is None for count in children):
        return None
    return int(kind.num_buffers) + sum(count or 0 for count in children)


def _spans(block: Block, message: Message, wanted: _Wanted) -> list[tuple[int, int]]:
    """The bytes of a batch's body that are read."""
    body = block.start + block.head
    if wanted.buffers is None or len(message.buffers) != wanted.total:
        return [(body, block.stop)]
    spans = []
    for first, last in wanted.buffers:
        taken = [(offset, offset + length) for offset, length in message.buffers[first:last] if length]
        if taken:
            start, stop = min(taken)[0], max(stop for _, stop in taken)
            spans.append((body + start, body + stop))
    return joined(spans)


def _ranges(layout: Layout, split: int, wanted: _Wanted) -> list[tuple[int, int]]:
    """What is read of a batch: all of it, or its head and the wanted parts of its body."""
    block = layout.batches[split]
    if wanted.buffers is None:
        return [(block.start, block.stop)]
    head = (block.start, block.start + block.head)
    return joined([head, *_spans(block, layout.messages[split], wanted)])


def _read(source: Source, layout: Layout, split: int, wanted: _Wanted) -> Buffer:
    """The message of a batch; what is not wanted of its body is zeros, of which memory takes no note."""
    block = layout.batches[split]
    ranges = _ranges(layout, split, wanted)
    parts = layout.read(source, ranges)
    if ranges == [(block.start, block.stop)]:
        message = parts[0]
    else:
        whole = np.zeros(block.head + block.body, np.uint8)
        for (start, stop), part in zip(ranges, parts, strict=True):
            whole[start - block.start : stop - block.start] = np.frombuffer(part, np.uint8)
        message = whole.data
    head_of(message, block, split)
    return message


def _decoded(schema: Buffer, dictionaries: list[Buffer], message: Buffer, fields: list[int] | None) -> pa.RecordBatch:
    """The batch of these messages, mostly without a copy."""
    import pyarrow as pa

    if not dictionaries and fields is None:  # without a Python file, whose reads each wait for the interpreter
        read = pa.ipc.read_message(pa.BufferReader(message))
        return pa.ipc.read_record_batch(read, pa.ipc.read_schema(pa.py_buffer(schema)))
    file = SparseFile(_Nothing(sum(map(len, (schema, *dictionaries, message)))))
    at = 0
    for part in (schema, *dictionaries, message):
        file.add(at, part)
        at += len(part)
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    return pa.ipc.open_stream(pa.PythonFile(file, mode="r"), options=options).read_next_batch()


class _Nothing:
    """What is behind a file of which all is at hand."""

    def __init__(self, size: int) -> None:
        self.size = size

    def read(self, start: int, stop: int) -> Buffer:
        raise ValueError(f"bytes {start} to {stop} are of more than one message")


def _check_all_but_text(schema: Buffer, dictionaries: list[Buffer], message: Buffer, fields: list[int] | None) -> None:
    """Validate a batch with its text as bytes, which lie just the same."""
    import pyarrow as pa

    if dictionaries:
        raise CorruptError("its text is not UTF-8, or its offsets are wrong")
    known = pa.ipc.read_schema(pa.py_buffer(schema))
    plain = pa.schema([field.with_type(_as_bytes(field.type)) for field in known])
    _decoded(plain.serialize(), [], message, fields).validate(full=True)


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _as_bytes(kind.storage_type)
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    for test, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if test(kind):
            return make(kind.value_field.with_type(_as_bytes(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)), kind.list_size)
    return kind


@contextmanager
def _corrupt(split: int) -> Iterator[None]:
    """Turn what pyarrow raises into `CorruptError`."""
    import pyarrow as pa

    position = f"record batch {split}"
    try:
        yield
    except CorruptError as error:
        raise CorruptError(str(error), position) from None
    except StreamioError:  # of the source, or of the filter
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, StopIteration) as error:
        raise CorruptError(f"can't be decoded: {first_line(error)}", position) from error
