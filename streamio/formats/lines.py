"""JSON lines: one JSON object a line, plain or compressed.

How lines are found in a shard is in `linewise`. Retries, and what becomes of a line that can't be used, are
decided elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from streamio.errors import FormatError
from streamio.formats.base import Bad, Block, Deferred, Rows, Source
from streamio.formats.linewise import BOM, Run, runs
from streamio.formats.names import basename, codec_of, with_codecs
from streamio.formats.rows import ArrowRows, Records
from streamio.storage.faults import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_ROW_OVERHEAD = 256  # bytes that a small dict takes beside its text
_HEAD = 1 << 12  # bytes that tell whether a file is one JSON document
_DOCUMENTS = with_codecs([".json"])
_DECODER = msgspec.json.Decoder()
_UNREADABLE = (msgspec.DecodeError, RecursionError)
_BLANK = object()  # what a blank line holds
_TEXT = re.compile(rb"\S")


@dataclass(frozen=True, slots=True)
class Lines:
    """JSON lines (`.jsonl`, `.ndjson`, `.json`; also with `.gz`, `.zst`, `.bz2` and `.xz`).

    A record is the line's object, equal to what `json.loads` makes of it. `__index__` is the byte offset of
    the line in the uncompressed text.

    Args:
        columns: Top-level keys to keep, in this order; one that a line does not have becomes None. None keeps
            the object as it is.
    """

    columns: tuple[str, ...] | None = None

    name = "jsonl"
    suffixes = with_codecs([".jsonl", ".ndjson", ".json"])

    def cuttable(self, url: str) -> bool:
        """Whether the shard is plain text."""
        return codec_of(url) is None

    def blocks(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Generator[Block, None, None]:
        """The records that begin in the bytes [start, stop); blank lines are none.

        Args:
            source: The shard.
            start: First byte; 0 for a compressed shard.
            stop: Byte behind the last; the shard's size for a compressed one.
            first: Not needed here.
            begin: Where a line begins from which to go on; for a plain shard only.

        Yields:
            Blocks of some 512 KiB of text; a line that is no JSON object in UTF-8 as `Bad("json", ...)`.

        Raises:
            CorruptError: The compressed stream is damaged or cut short, or a line is longer than 1 GiB.
            FormatError: A `.json` file is one document over several lines, or one array.
        """
        with closing(self.deferred(source, start, stop, first, begin)) as found:
            for each in found:
                yield each.decode()

    def deferred(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Generator[Deferred, None, None]:
        """The same, not parsed yet; errors as for `blocks`."""
        return self._found(self._block, source, start, stop, begin)

    def unparsed(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Generator[Deferred, None, None]:
        """The same, with each line in the place of its record; errors as for `blocks`."""
        return self._found(_unparsed, source, start, stop, begin)

    def parsed(self, texts: pa.LargeBinaryArray, index: NDArray[np.int64]) -> Records:
        """The records of lines, in any order.

        Args:
            texts: The lines, each with its newline, none of them blank.
            index: Where each begins in the uncompressed text.
        """
        _, offsets, text = texts.buffers()
        bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        values = _objects(text, bounds)
        if values is None:
            values = _each([text[:-1] for text in texts.to_pylist()], index)
        return Records(*self._records(values, index))

    def _found(
        self, block: Callable[..., Block], source: Source, start: int, stop: int, begin: int | None
    ) -> Generator[Deferred, None, None]:
        seekable = self.cuttable(source.url)
        unchecked = begin is None and basename(source.url).endswith(_DOCUMENTS)
        if unchecked and start:
            _refuse_documents(source.url, bytes(source.read(0, min(source.size, _HEAD))))
            unchecked = False
        with closing(runs(source, start, stop, begin)) as found:
            for run in found:
                if unchecked and (head := run.data[:_HEAD].removeprefix(BOM).strip()):
                    _refuse_documents(source.url, head)
                    unchecked = False
                behind = len(BOM) if not run.offset and run.data.startswith(BOM) else 0
                if _TEXT.search(run.data, behind, run.end):
                    yield Deferred(2 * run.end, partial(block, run, seekable=seekable))

    def _block(self, run: Run, *, seekable: bool) -> Block:
        values, starts, lengths = _parsed_at_once(run) or _parsed(run)
        return _block_of(Records(*self._records(values, starts)), run, starts, lengths, seekable=seekable)

    def _records(self, values: list[Any], starts: NDArray[np.int64]) -> tuple[list[Any], dict[int, Bad]]:
        """What lines hold with the wanted keys only, and which are no records."""
        bad: dict[int, Bad] = {}
        if set(map(type, values)) != {dict}:
            bad = {
                place: _unusable(value, int(starts[place]))
                for place, value in enumerate(values)
                if type(value) is not dict
            }
        return (values if self.columns is None else _selected(values, self.columns, bad)), bad


def _unparsed(run: Run, *, seekable: bool) -> Block:
    """The lines themselves, each with its newline; blank ones are left out."""
    import pyarrow as pa

    text = run.data if run.ended else run.data[: run.end] + b"\n"
    bounds = _bounds(text, run.end + (not run.ended))
    begins, lengths = bounds[:-1], np.diff(bounds) - 1
    lines = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(begins), [None, pa.py_buffer(bounds), pa.py_buffer(text)]
    )
    odd = np.flatnonzero(np.frombuffer(text, np.uint8)[begins] != ord("{"))
    blank = [place for place in odd.tolist() if _is_blank(lines[place].as_py(), run.offset + int(begins[place]))]
    if blank:
        kept = np.delete(np.arange(len(begins)), blank)
        begins, lengths, lines = begins[kept], lengths[kept], lines.take(pa.array(kept))
    rows = ArrowRows(pa.record_batch([lines], names=["line"]), validated=True)
    return _block_of(rows, run, begins + run.offset, lengths, seekable=seekable)


def _is_blank(line: bytes, offset: int) -> bool:
    return not (line if offset else line.removeprefix(BOM)).strip()


def _block_of(rows: Rows, run: Run, starts: NDArray[np.int64], lengths: NDArray[np.int64], *, seekable: bool) -> Block:
    return Block(rows, starts, lengths + _ROW_OVERHEAD, run.seek(starts) if seekable else None)


_Values: TypeAlias = "tuple[list[Any], NDArray[np.int64], NDArray[np.int64]]"


def _bounds(text: bytes, end: int) -> NDArray[np.int64]:
    """Where each line in the first `end` bytes begins, and where the last one ends, all with their newlines."""
    return np.concatenate(([0], np.flatnonzero(np.frombuffer(text, np.uint8, end) == ord("\n")) + 1))


def _parsed_at_once(run: Run) -> _Values | None:
    """What the lines hold, where they begin, and their lengths; None where not each of them surely is one object."""
    if not run.ended:
        return None
    bounds = _bounds(run.data, run.end)
    values = _objects(run.data, bounds)
    return None if values is None else (values, bounds[:-1] + run.offset, np.diff(bounds) - 1)


def _objects(text: bytes | pa.Buffer, bounds: NDArray[np.int64]) -> list[Any] | None:
    """What the lines between these bounds hold; None where not each of them surely is one object.

    Each begins with `{` and ends with `}`. Within a value the one never follows the other, so none goes on over the end
    of a line; and there are as many values as lines.
    """
    data = np.frombuffer(text, np.uint8)
    if (data[bounds[:-1]] != ord("{")).any() or (data[bounds[1:] - 2] != ord("}")).any():
        return None
    try:
        values = _DECODER.decode_lines(memoryview(text)[bounds[0] : bounds[-1]])
    except _UNREADABLE:
        return None
    return values if len(values) == len(bounds) - 1 else None


def _parsed(run: Run) -> _Values:
    """What each line holds that is not blank, where it begins, and its length."""
    lines = run.lines()
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    starts = run.starts(lengths)
    values = _each(lines, starts)
    kept = [place for place, value in enumerate(values) if value is not _BLANK]
    return [values[place] for place in kept], starts[kept], lengths[kept]


def _each(lines: list[bytes], starts: NDArray[np.int64]) -> list[Any]:
    """What lines hold, one by one: any value, `Bad`, or `_BLANK`."""
    values: list[Any] = []
    unread = iter(lines)
    while len(values) < len(lines):
        try:
            values.extend(map(_DECODER.decode, unread))
        except _UNREADABLE:  # noqa: PERF203 - a turn for each line that fails; what came before it was added
            line, offset = lines[len(values)], int(starts[len(values)])
            values.append(_BLANK if _is_blank(line, offset) else _parse(line, offset))
    return values


def _selected(values: list[Any], columns: tuple[str, ...], bad: Mapping[int, Bad]) -> list[Any]:
    """The records with these keys only."""
    if bad:
        return [value if place in bad else {c: value.get(c) for c in columns} for place, value in enumerate(values)]
    if len(columns) == 1:
        (column,) = columns
        return [{column: value.get(column)} for value in values]
    return [{column: value.get(column) for column in columns} for value in values]


def _unusable(value: Any, offset: int) -> Bad:
    """Why a value that is no object is no record."""
    if type(value) is Bad:
        return value
    return Bad("json", f"a JSON object is wanted, not {_kind(value)}", f"byte {offset}")


def _parse(line: bytes, offset: int) -> Any:
    """What Python's own json makes of a line: it decides where msgspec refuses (NaN, lone surrogates)."""
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
    head = head.removeprefix(BOM).lstrip()
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
