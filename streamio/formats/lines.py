"""JSON lines: one JSON object a line, plain, gzip or zstd.

Plain files may be cut at any byte; a compressed one is read from its start. Retries, and what becomes of a
line that can't be used, are decided elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson

from streamio.errors import FormatError
from streamio.formats.base import Bad, CorruptError, Record, Row, Source
from streamio.formats.compression import uncompressed
from streamio.formats.names import basename, codec_of
from streamio.storage.faults import shown

MAX_LINE = 1 << 30
"""The longest line that is read, in bytes; a longer one makes its split unreadable."""

_ROW_OVERHEAD = 256  # bytes that a small dict takes beside its text
_PAST_THE_END = 1 << 16  # read along with a split, as its last line mostly ends there
_LONGEST_STEP = 1 << 23
_BLOCK = 1 << 20  # parsed at once: larger ones fall out of the processor's cache
_HEAD = 1 << 12  # bytes that tell whether a file is one JSON document
_ENDLESS = 1 << 62
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Lines:
    """JSON lines (`.jsonl`, `.ndjson`, `.json`; also with `.gz` and `.zst`).

    A record is the line's object, equal to what `json.loads` makes of it. `__index__` is the byte offset of
    the line in the uncompressed text.

    Args:
        columns: Top-level keys to keep, in this order; one that a line does not have becomes None. None keeps
            the object as it is.
    """

    columns: tuple[str, ...] | None = None

    name = "jsonl"
    suffixes = tuple(suffix + codec for suffix in (".jsonl", ".ndjson", ".json") for codec in ("", ".gz", ".zst"))

    def cuttable(self, url: str) -> bool:
        """Whether the shard is plain text."""
        return codec_of(url) is None

    def rows(self, source: Source, start: int, stop: int) -> Iterator[Row]:
        """The records that begin in the bytes [start, stop); blank lines are none.

        Args:
            source: The shard.
            start: First byte; 0 for a compressed shard.
            stop: Byte after the last; the shard's size for a compressed one.

        Yields:
            One row a line; a line that is no JSON object in UTF-8 as `Bad("json", ...)`.

        Raises:
            CorruptError: The compressed stream is damaged or cut short, or a line is longer than `MAX_LINE`.
            FormatError: A `.json` file is one document over several lines, or one array.
        """
        columns = self.columns
        for offset, line, exact in _lines(source, start, stop, cuttable=self.cuttable(source.url)):
            value = _value(line, offset, exact=exact)
            if value is None:
                continue
            if columns is not None and type(value) is dict:
                value = {column: value.get(column) for column in columns}
            yield Row(offset, len(line) + _ROW_OVERHEAD, value)


def _lines(source: Source, start: int, stop: int, *, cuttable: bool) -> Iterator[tuple[int, bytes, bool]]:
    """Each line that begins in [start, stop): offset, text, and whether Python's own json must read it."""
    if start >= stop:
        return
    unchecked = basename(source.url).endswith((".json", ".json.gz", ".json.zst"))
    if not cuttable:
        start, stop = 0, _ENDLESS
    elif start and unchecked:
        _refuse_documents(source.url, source.read(0, min(source.size, _HEAD)))
        unchecked = False
    offset = max(start - 1, 0)  # the byte before tells whether a line begins at `start`
    with closing(_plain(source, offset, stop) if cuttable else uncompressed(source)) as chunks:
        first = b""
        if start:
            offset, first = _first_line(chunks, offset, stop)
        for block in _blocks(chain((first,), chunks) if offset < stop else (), offset):
            if unchecked and (head := block[:_HEAD].removeprefix(_BOM).strip()):
                _refuse_documents(source.url, head)
                unchecked = False
            long = {offset + place for place in _lines_with_long_numbers(block)}
            for line in block.split(b"\n"):
                if offset >= stop:
                    return
                yield offset, line, offset in long
                offset += len(line) + 1
            if offset >= stop:
                return


def _value(line: bytes, offset: int, *, exact: bool) -> Record | Bad | None:
    """The object in a line; None if the line is blank."""
    try:
        value = _parse(line, offset) if exact else orjson.loads(line)
    except orjson.JSONDecodeError:
        if not (line if offset else line.removeprefix(_BOM)).strip():
            return None
        value = _parse(line, offset)
    if type(value) is dict or type(value) is Bad:
        return value
    return Bad("json", f"a JSON object is wanted, not {_kind(value)}", f"byte {offset}")


def _plain(source: Source, start: int, stop: int) -> Generator[bytes, None, None]:
    """The bytes from `start` on: a stream to a little past `stop`, then ever larger reads as asked for."""
    size = source.size
    position = min(size, stop + _PAST_THE_END)
    stream = source.stream(start, position)
    try:
        yield from stream
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    step = _PAST_THE_END
    while position < size:
        end = min(size, position + step)
        yield source.read(position, end)
        position = end
        step = min(2 * step, _LONGEST_STEP)


def _first_line(chunks: Iterable[bytes], offset: int, stop: int) -> tuple[int, bytes]:
    """Where the first line begins that follows a newline, and what is at hand of it; `stop` if none begins before.

    What is before it belongs to a line of an earlier split, perhaps a long one: it is let go of at once.
    """
    for chunk in chunks:
        newline = chunk.find(b"\n")
        if newline >= 0:
            return min(stop, offset + newline + 1), chunk[newline + 1 :]
        offset += len(chunk)
        if offset >= stop:
            break
    return stop, b""


def _blocks(chunks: Iterable[bytes], offset: int) -> Iterator[bytes]:
    """Runs of whole lines, without the newline of the last one; the text's last line needs none."""
    pending: list[bytes] = []
    waiting = 0
    for chunk in _pieces(chunks):
        end = chunk.rfind(b"\n")
        if end < 0:
            pending.append(chunk)
            waiting += len(chunk)
            if waiting > MAX_LINE:
                raise CorruptError(f"a line is longer than {MAX_LINE} bytes", f"byte {offset}")
            continue
        pending.append(chunk[:end])
        block = b"".join(pending)
        yield block
        offset += len(block) + 1
        pending = [chunk[end + 1 :]]
        waiting = len(pending[0])
    if waiting:
        yield b"".join(pending)


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), _BLOCK):
            yield chunk[start : start + _BLOCK]


def _lines_with_long_numbers(block: bytes) -> set[int]:
    """Where lines begin that have 19 digits in a row: of integers beyond 64 bits orjson makes floats."""
    digits = np.frombuffer(block, np.uint8) - 48 < 10
    for shift in (1, 2, 4, 8, 3):  # runs of 2, 4, 8, 16, 19
        digits = digits[shift:] & digits[:-shift]
    starts: set[int] = set()
    stop = -1
    for place in np.flatnonzero(digits).tolist():
        if place > stop:
            starts.add(block.rfind(b"\n", 0, place) + 1)
            stop = block.find(b"\n", place)
            if stop < 0:
                break
    return starts


def _parse(line: bytes, offset: int) -> Any:
    """What Python's own json makes of a line: it decides where orjson refuses, or would round."""
    position = f"byte {offset}"
    try:
        text = line.decode("utf-8-sig" if offset == 0 else "utf-8")
        return json.loads(text)
    except UnicodeDecodeError as error:
        return Bad("json", f"not UTF-8: {error.reason} at byte {error.start} of the line", position)
    except json.JSONDecodeError as error:
        return Bad("json", f"not JSON: {error.msg} at character {error.pos} of the line", position)
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; thousands of brackets
        return Bad("json", f"not usable as JSON: {error}", position)


def _kind(value: Any) -> str:
    kinds = {list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _refuse_documents(url: str, head: bytes) -> None:
    head = head.removeprefix(_BOM).lstrip()
    if head.startswith(b"["):
        what = "one JSON array"
    elif head.split(b"\n", 1)[0].strip() == b"{":
        what = "one JSON document over several lines"
    else:
        return
    raise FormatError(
        f"{shown(url)} holds {what}, not one JSON object a line: write it as JSON lines"
        " (`jq -c '.[]'` makes them of an array, `jq -c .` of a document)"
    )
