"""Text: each line is a record.

How lines are found in a shard is in `linewise`; what becomes of one that can't be used is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.formats.base import Bad, Block, Record, Source
from streamio.formats.linewise import BOM, Run, runs
from streamio.formats.names import codec_of, with_codecs
from streamio.formats.rows import Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROW_OVERHEAD = 256  # bytes that a dict of one string takes beside the text


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of text (`.txt`; also with `.gz`, `.zst`, `.bz2` and `.xz`).

    A record is `{"text": line}`, without the LF or CRLF that ends it. A blank line is a record like any other.
    `__index__` is the byte offset of the line in the uncompressed text.
    """

    name = "text"
    suffixes = with_codecs([".txt"])

    def cuttable(self, url: str) -> bool:
        """Whether the shard is plain text."""
        return codec_of(url) is None

    def blocks(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Generator[Block, None, None]:
        """The lines that begin in the bytes [start, stop).

        Args:
            source: The shard.
            start: First byte; 0 for a compressed shard.
            stop: Byte behind the last; the shard's size for a compressed one.
            first: Not needed here.
            begin: Where a line begins from which to go on; for a plain shard only.

        Yields:
            Blocks of some 512 KiB of text; a line that is not UTF-8 as `Bad("text", ...)`.

        Raises:
            CorruptError: The compressed stream is damaged or cut short, or a line is longer than 1 GiB.
        """
        seekable = self.cuttable(source.url)
        with closing(runs(source, start, stop, begin)) as found:
            for run in found:
                lines = run.lines()
                lengths = np.fromiter(map(len, lines), np.int64, len(lines))
                starts = run.starts(lengths)
                values, bad = _records(run, lines, starts)
                yield Block(
                    Records(values, bad), starts, lengths + _ROW_OVERHEAD, run.seek(starts) if seekable else None
                )


def _records(run: Run, lines: list[bytes], starts: NDArray[np.int64]) -> tuple[list[Any], dict[int, Bad]]:
    """Each line's record, and those that are not UTF-8."""
    if b"\r" in run.data:
        last = lines[-1]
        lines = [line.removesuffix(b"\r") for line in lines]
        if not run.ended:
            lines[-1] = last
    if run.offset == 0:
        lines[0] = lines[0].removeprefix(BOM)
    try:
        return [{"text": line.decode()} for line in lines], {}
    except UnicodeDecodeError:
        values = [_value(line, start) for line, start in zip(lines, starts.tolist(), strict=True)]
        return values, {place: value for place, value in enumerate(values) if type(value) is Bad}


def _value(line: bytes, offset: int) -> Record | Bad:
    try:
        return {"text": line.decode()}
    except UnicodeDecodeError as error:
        return Bad("text", f"not UTF-8: {error.reason} at byte {error.start} of the line", f"byte {offset}")
