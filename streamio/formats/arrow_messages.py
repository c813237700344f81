"""The few facts of Arrow IPC messages and footers that tell where record batches lie, and how many records they hold.

A small reader of flatbuffers that checks every offset; columns are decoded by pyarrow, in `arrow.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from streamio.formats.base import Buffer, CorruptError

Kind: TypeAlias = Literal["schema", "dictionary", "batch"]

_KINDS: dict[int, Kind] = {1: "schema", 2: "dictionary", 3: "batch"}
_CONTINUES = 0xFFFFFFFF


class Block(NamedTuple):
    """Where a message lies: first byte, bytes of its prefix and metadata, bytes of its body."""

    start: int
    head: int
    body: int

    @property
    def stop(self) -> int:
        """Byte after its last."""
        return self.start + self.head + self.body


@dataclass(frozen=True, slots=True)
class Message:
    """What the metadata of a message say.

    Attributes:
        kind: Of what the message is.
        body: Bytes of the body that follows.
        records: Rows of a record batch.
        compressed: Whether a record batch's buffers are.
        buffers: Where a record batch's buffers lie in the body: offset and length of each.
        dictionary: Number of the dictionary that a dictionary batch is of.
        delta: Whether a dictionary batch adds to what was there.
        big_endian: Whether a schema says so of its data.
    """

    kind: Kind
    body: int
    records: int = 0
    compressed: bool = False
    buffers: tuple[tuple[int, int], ...] = ()
    dictionary: int = 0
    delta: bool = False
    big_endian: bool = False


def head_length(data: Buffer, at: int) -> tuple[int, int]:
    """How long the prefix at a place is, and the metadata that it announces: 0 bytes of these at the end of a stream.

    Raises:
        CorruptError: No message begins there.
    """
    first = _number("<I", data, at)
    prefix, length = (8, _number("<i", data, at + 4)) if first == _CONTINUES else (4, _number("<i", data, at))
    if length < 0:
        raise CorruptError("it is no message: its length is negative")
    return prefix, length


def parse_message(metadata: Buffer) -> Message:
    """Read the metadata of a message, without the prefix.

    Raises:
        CorruptError: They are damaged, or of a message of another kind.
    """
    table = _Table.root(metadata)
    kind = _KINDS.get(table.number(1, "<B"))
    body = table.number(3, "<q")
    header = table.table(2)
    if kind is None or header is None or body < 0:
        raise CorruptError("it is no message of a schema or of records")
    if kind == "schema":
        return Message(kind, body, big_endian=header.number(0, "<h") != 0)
    if kind == "dictionary":
        return Message(kind, body, dictionary=header.number(0, "<q"), delta=header.number(2, "<B") != 0)
    records = header.number(0, "<q")
    buffers = tuple((offset, length) for offset, length in header.structs(2, "<qq"))
    if records < 0 or any(offset < 0 or length < 0 or offset + length > body for offset, length in buffers):
        raise CorruptError("its buffers lie outside its body")
    return Message(kind, body, records, header.table(3) is not None, buffers)


def parse_footer(footer: Buffer) -> tuple[list[Block], list[Block]]:
    """Where the dictionaries and the record batches of a file lie.

    Raises:
        CorruptError: The footer is damaged.
    """
    table = _Table.root(footer)
    dictionaries, batches = (
        [Block(*block) for block in table.structs(number, "<qi4xq")]  # a gap of four bytes aligns the last
        for number in (2, 3)
    )
    return dictionaries, batches


class _Table:
    """A table of a flatbuffer; fields that are not there have their default."""

    def __init__(self, data: Buffer, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _number("<i", data, at)
        self._size = _number("<H", data, self._fields)

    @classmethod
    def root(cls, data: Buffer) -> _Table:
        return cls(data, _number("<I", data, 0))

    def number(self, field: int, kind: str) -> int:
        place = self._place(field)
        return _number(kind, self._data, place) if place else 0

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return _Table(self._data, place + _number("<I", self._data, place)) if place else None

    def structs(self, field: int, kind: str) -> list[tuple[int, ...]]:
        place = self._place(field)
        if not place:
            return []
        start = place + _number("<I", self._data, place)
        stop = start + 4 + _number("<I", self._data, start) * struct.calcsize(kind)
        if stop > len(self._data):
            raise CorruptError("its metadata are damaged: a list in them is longer than they are")
        return list(struct.iter_unpack(kind, self._data[start + 4 : stop]))

    def _place(self, field: int) -> int:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        offset = _number("<H", self._data, self._fields + entry)
        return self._at + offset if offset else 0


def _number(kind: str, data: Buffer, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(kind):
        raise CorruptError("its metadata are damaged: they point outside themselves")
    return int(struct.unpack_from(kind, data, at)[0])
