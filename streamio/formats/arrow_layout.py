"""Where the record batches of an Arrow file or stream lie, found without reading the batches themselves.

A file has a footer that says it; of a stream the messages' heads are read one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamio.errors import FormatError
from streamio.formats.arrow_messages import Block, Message, head_length, parse_footer, parse_message
from streamio.formats.base import Buffer, CorruptError
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from streamio.formats.base import Source

_ENDS = 1 << 16  # bytes that are read at each end of a shard first
_AHEAD = 1 << 16  # bytes that are read for the head of a message, at least and at most
_FAR_AHEAD = 1 << 20
_MAGIC = b"ARROW1"
_TOGETHER = 256  # heads asked for at once


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known of a shard before its records are read.

    Attributes:
        schema: The message of the schema, prefix and all.
        batches: The record batches.
        dictionaries: For each batch the dictionary batches that it needs, in order.
        messages: What the heads of the batches say; empty for a file, of which they have not been read.
        whole: All of a small shard; else empty.
    """

    schema: Buffer
    batches: tuple[Block, ...]
    dictionaries: tuple[tuple[Block, ...], ...]
    messages: tuple[Message, ...]
    whole: Buffer

    @property
    def weight(self) -> int:
        """About what it takes in memory, in bytes."""
        buffers = sum(len(message.buffers) for message in self.messages)
        return len(self.schema) + 300 * len(self.batches) + 120 * buffers + len(self.whole)

    def read(self, source: Source, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The bytes of these ranges."""
        if self.whole:
            return [self.whole[start:stop] for start, stop in ranges]
        return source.read_many(ranges) if ranges else []

    def heads(self, source: Source, splits: Sequence[int]) -> list[Message]:
        """What the heads of these batches say.

        Raises:
            CorruptError: One is damaged, or says something else than the footer does.
        """
        if self.messages:
            return [self.messages[split] for split in splits]
        found = []
        for first in range(0, len(splits), _TOGETHER):
            some = splits[first : first + _TOGETHER]
            blocks = [self.batches[split] for split in some]
            data = self.read(source, [(block.start, block.start + block.head) for block in blocks])
            found += [head_of(*each) for each in zip(data, blocks, some, strict=True)]
        return found


def read_layout(source: Source) -> Layout:
    """Find the record batches of a shard.

    Raises:
        CorruptError: It is neither an Arrow file nor a stream, or is cut short, or damaged.
        FormatError: It is of a kind that is not read (Feather version 1, big-endian data).
    """
    size = source.size
    if size < 8:
        raise CorruptError(f"not an Arrow file or stream: it has {size} bytes" if size else "the file is empty")
    if size <= 2 * _ENDS:
        start = end = whole = source.read(0, size)
    else:
        start, end = source.read_many([(0, _ENDS), (size - _ENDS, size)])
        whole = b""
    if start[:4] == b"FEA1":
        raise FormatError(f"{shown(source.url)} is of Feather version 1: write it anew as version 2")
    if start[:6] == _MAGIC:
        return _of_file(source, start, end, whole)
    return _of_stream(source, start, whole)


def head_of(data: Buffer, block: Block, split: int) -> Message:
    """What the head of a batch says, which the bytes of the batch begin with.

    Raises:
        CorruptError: It is damaged, or says something else than the footer does.
    """
    with _placed(f"record batch {split}"):
        prefix, length = head_length(data, 0)
        message = parse_message(data[prefix : prefix + length])
        if message.kind != "batch" or (prefix + length, message.body) != (block.head, block.body):
            raise CorruptError("its head says something else than the footer does")
    return message


def _of_file(source: Source, start: Buffer, end: Buffer, whole: Buffer) -> Layout:
    size = source.size
    if size < 22 or end[-6:] != _MAGIC:
        raise CorruptError("an Arrow file that is cut short: it does not end in ARROW1")
    length = int.from_bytes(end[-10:-6], "little")
    begin = size - 10 - length
    if begin < 8:
        raise CorruptError("its footer is damaged: it is said to be longer than the file")
    footer = end[-10 - length : -10] if length + 10 <= len(end) else source.read(begin, size - 10)
    dictionaries, batches = parse_footer(footer)
    for block in (*dictionaries, *batches):
        if block.start < 8 or block.head < 8 or block.body < 0 or block.stop > begin:
            raise CorruptError("its footer is damaged: it points outside the file")
    schema = _schema(source, start, 8)
    return Layout(schema, tuple(batches), (tuple(dictionaries),) * len(batches), (), whole)


def _of_stream(source: Source, start: Buffer, whole: Buffer) -> Layout:
    """Hop from head to head. Where bodies are short, several heads come by one read."""
    schema = _schema(source, start, 0)
    heads = _Heads(source, start)
    batches: list[Block] = []
    messages: list[Message] = []
    before: list[tuple[Block, ...]] = []
    dictionaries: dict[Block, int] = {}
    needed: tuple[Block, ...] = ()
    at = len(schema)
    while at < source.size:
        with _placed(f"byte {at}"):
            found = heads.read(at)
            if found is None:
                break
            block, message = found
            if message.kind == "schema":
                raise CorruptError("a second schema follows")
        if message.kind == "batch":
            batches.append(block)
            messages.append(message)
            before.append(needed)
        else:
            if not message.delta:
                dictionaries = {old: number for old, number in dictionaries.items() if number != message.dictionary}
            dictionaries[block] = message.dictionary
            needed = tuple(dictionaries)
        at = block.stop
    return Layout(schema, tuple(batches), tuple(before), tuple(messages), whole)


class _Heads:
    """Reads the heads of a stream's messages one after the other, some of what follows each along with it."""

    def __init__(self, source: Source, start: Buffer) -> None:
        self._source = source
        self._window = start
        self._base = 0
        self._ahead = _AHEAD

    def read(self, at: int) -> tuple[Block, Message] | None:
        """The message at a place; None where the stream ends."""
        left = self._source.size - at
        prefix, length = (4, 0) if left < 8 and not any(self._bytes(at, left)) else head_length(self._bytes(at, 8), 0)
        if not length:
            if left - prefix > 8:
                raise CorruptError(f"{left - prefix} bytes follow the end of the stream")
            return None
        head = prefix + length
        message = parse_message(self._bytes(at, head)[prefix:])
        if head + message.body > left:
            raise CorruptError("the stream is cut short")
        self._ahead = _FAR_AHEAD if head + message.body < _FAR_AHEAD // 4 else _AHEAD
        return Block(at, head, message.body), message

    def _bytes(self, at: int, count: int) -> Buffer:
        stop = at + count
        if stop > self._source.size:
            raise CorruptError("the stream is cut short")
        if at < self._base or stop > self._base + len(self._window):
            self._window = self._source.read(at, min(self._source.size, at + max(count, self._ahead)))
            self._base = at
        return self._window[at - self._base : stop - self._base]


def _schema(source: Source, start: Buffer, at: int) -> Buffer:
    """The message of the schema at a place, and nothing after it."""
    with _placed("", "not an Arrow file or stream: "):
        prefix, length = head_length(start, at)
        stop = at + prefix + length
        if stop > source.size or length < 8:
            raise CorruptError("it does not begin with a schema")
        data = start[at:stop] if stop <= len(start) else source.read(at, stop)
        message = parse_message(data[prefix:])
        if message.kind != "schema" or message.body:
            raise CorruptError("it does not begin with a schema")
    if message.big_endian:
        raise FormatError(f"{shown(source.url)} holds big-endian data, which streamio does not read: write it anew")
    return data


@contextmanager
def _placed(position: str, what: str = "") -> Iterator[None]:
    """Say where something is corrupt."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(f"{what}{error}", position) from None
