"""JSON lines: one JSON object a line, plain or compressed.

How lines are found in a shard is in `linewise`. Retries, and what becomes of a line that can't be used, are
decided elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from streamio.errors import FormatError
from streamio.formats.base import Bad, Block, Source
from streamio.formats.linewise import BOM, Run, runs
from streamio.formats.names import basename, codec_of, with_codecs
from streamio.formats.rows import Records
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROW_OVERHEAD = 256  # bytes that a small dict takes beside its text
_HEAD = 1 << 12  # bytes that tell whether a file is one JSON document
_DOCUMENTS = with_codecs([".json"])
_BLANK = object()  # what a blank line holds


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
                block = self._block(run, seekable=seekable)
                if len(block.index):
                    yield block

    def _block(self, run: Run, *, seekable: bool) -> Block:
        lines = run.lines()
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        starts = run.starts(lengths)
        values = _parsed(run, lines, starts)
        bad: dict[int, Bad] = {}
        if set(map(type, values)) != {dict}:
            kept = [place for place, value in enumerate(values) if value is not _BLANK]
            starts, lengths = starts[kept], lengths[kept]
            values = [values[place] for place in kept]
            bad = {
                place: _unusable(value, int(starts[place]))
                for place, value in enumerate(values)
                if type(value) is not dict
            }
        if self.columns is not None:
            values = _selected(values, self.columns, bad)
        return Block(Records(values, bad), starts, lengths + _ROW_OVERHEAD, run.seek(starts) if seekable else None)


def _parsed(run: Run, lines: list[bytes], starts: NDArray[np.int64]) -> list[Any]:
    """What each line holds: any value, `Bad`, or `_BLANK`."""
    values: list[Any] = []
    unread = iter(lines)
    while len(values) < len(lines):
        try:
            values.extend(map(orjson.loads, unread))
        except orjson.JSONDecodeError:  # noqa: PERF203 - a turn for each line that fails; what came before it was added
            line, offset = lines[len(values)], int(starts[len(values)])
            blank = not (line if offset else line.removeprefix(BOM)).strip()
            values.append(_BLANK if blank else _parse(line, offset))
    for place in _long_numbers(run, starts):
        values[place] = _parse(lines[place], int(starts[place]))
    return values


def _selected(values: list[Any], columns: tuple[str, ...], bad: Mapping[int, Bad]) -> list[Any]:
    """The records with these keys only."""
    if bad:
        return [value if place in bad else {c: value.get(c) for c in columns} for place, value in enumerate(values)]
    if len(columns) == 1:
        (column,) = columns
        return [{column: value.get(column)} for value in values]
    return [{column: value.get(column) for column in columns} for value in values]


def _long_numbers(run: Run, starts: NDArray[np.int64]) -> list[int]:
    """The lines that may have an integer beyond 64 bits, of which orjson makes a float.

    Such a one has 20 digits in a row, or 19 and a minus sign; digits behind a point are a fraction.
    """
    data = np.frombuffer(run.data, np.uint8, run.end)
    words = data[: run.end // 4 * 4].view(np.uint32) & np.uint32(0xF0F0F0F0)
    quads = words == np.uint32(0x30303030)  # four digits each, or what stands next to them in ASCII
    quads = quads[1:] & quads[:-1]
    quads = quads[2:] & quads[:-2]  # 19 digits hold four of these
    places = 4 * np.flatnonzero(quads)
    if not len(places):
        return []
    left = right = np.zeros(len(places), np.int64)
    for away in (1, 2, 3):  # clipped at both ends: no object begins or ends with a digit
        left = left + ((left == away - 1) & (data.take(places - away, mode="clip") - 48 < 10))
    for away in (0, 1, 2, 3):
        right = right + ((right == away) & (data.take(places + 16 + away, mode="clip") - 48 < 10))
    before = data.take(places - left - 1, mode="clip")
    count = np.where(before - 48 < 10, 0, left + right)  # a digit: the number was met at an earlier place
    long = ((count >= 4) & (before != ord("."))) | ((count == 3) & (before == ord("-")))
    if not long.any():
        return []
    lines = np.searchsorted(starts, places[long] + run.offset, "right") - 1
    return list(np.unique(lines).tolist())


def _unusable(value: Any, offset: int) -> Bad:
    """Why a value that is no object is no record."""
    if type(value) is Bad:
        return value
    return Bad("json", f"a JSON object is wanted, not {_kind(value)}", f"byte {offset}")


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
