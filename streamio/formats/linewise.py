"""Finds whole lines in a shard, for formats of one record a line.

A plain shard may be cut at any byte, a compressed one is read from its start. What a line means is the formats'
business.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from streamio.formats.base import PAST_THE_END, Buffer, CorruptError, Source
from streamio.formats.compression import uncompressed
from streamio.formats.names import codec_of
from streamio.iterators import ended

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_LINE = 1 << 30
"""The longest line that is read, in bytes; a longer one makes its split unreadable."""

BOM = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which may stand at the start of a shard."""

_RUN = 1 << 19  # bytes parsed at once: much larger ones fall out of the processor's cache
_LONGEST_STEP = 1 << 23
_TAIL = 1 << 12
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Run:
    """Lines that follow each other.

    Attributes:
        offset: Where the first of them begins in the uncompressed text.
        data: Their bytes; the beginning of another line may stand behind them.
        end: Where they end in `data`. The last line ends with its newline, but at the end of the shard.
    """

    offset: int
    data: bytes
    end: int

    @property
    def ended(self) -> bool:
        """Whether the last line has its newline."""
        return self.data[self.end - 1 : self.end] == b"\n"

    def lines(self) -> list[bytes]:
        """Each line without its newline."""
        lines = self.data.split(b"\n")
        if self.end < len(self.data) or self.ended:
            lines.pop()
        return lines

    def starts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each line begins in the uncompressed text, given their lengths without newlines."""
        lengths = lengths + 1
        starts: NDArray[np.int64] = np.cumsum(lengths)
        starts += self.offset - lengths
        return starts

    def seek(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where reading can begin with each of the lines that start there, and with what follows them all."""
        return np.append(starts, self.offset + self.end)


def runs(source: Source, start: int, stop: int, begin: int | None = None) -> Generator[Run, None, None]:
    """The lines that begin in the bytes [start, stop), some 512 KiB at a time.

    Args:
        source: The shard.
        start: First byte; 0 for a compressed shard.
        stop: Byte behind the last; the shard's size for a compressed one.
        begin: Where one of these lines begins; those before it are left out. None for all; for plain shards only.

    Raises:
        CorruptError: The compressed stream is damaged or cut short, or a line is longer than `MAX_LINE`; the lines
            before it have been yielded.
    """
    if codec_of(source.url) is not None:
        stop, offset = _ENDLESS, 0
    elif begin is not None:
        offset = begin
    else:
        offset = max(start - 1, 0)  # the byte before tells whether a line begins at `start`
    if offset >= stop:
        return
    with closing(uncompressed(source) if stop == _ENDLESS else _plain(source, offset, stop)) as chunks:
        pieces = _pieces(chunks)
        if start and begin is None:
            offset, first = _first_line(pieces, offset, stop)
            pieces = chain((first,) if first else (), pieces)
        if offset < stop:
            yield from _whole_lines(pieces, offset, stop)


def _whole_lines(pieces: Iterator[Buffer], offset: int, stop: int) -> Iterator[Run]:
    """Runs of lines, up to the one in which `stop` falls; the text's last line needs no newline."""
    pending: list[Buffer] = []
    waiting = 0
    newline = False  # is in what is pending
    damage: CorruptError | None = None
    while True:
        try:
            piece = next(pieces, b"")
        except CorruptError as error:
            damage, piece = error, b""
        if not piece:
            break
        pending.append(piece)
        waiting += len(piece)
        newline = newline or _has_newline(piece)
        if not newline:
            _check_length(waiting, offset)
        elif waiting >= _RUN or offset + waiting >= stop:
            data = b"".join(pending)
            run = _run(offset, data, data.rfind(b"\n") + 1, stop)
            yield run
            offset += run.end
            if offset >= stop:
                return
            pending = [data[run.end :]]
            waiting = len(pending[0])
            newline = False
    data = b"".join(pending)
    end = len(data) if damage is None else data.rfind(b"\n") + 1
    if end:
        yield _run(offset, data, end, stop)
    if damage is not None:
        raise damage


def _run(offset: int, data: bytes, end: int, stop: int) -> Run:
    """The lines in the first `end` bytes that begin before `stop`."""
    newline = data.find(b"\n")
    _check_length(end if newline < 0 else newline, offset)  # a later one is shorter than a run
    if offset + end > stop and (newline := data.find(b"\n", stop - 1 - offset, end)) >= 0:
        end = newline + 1
        data = data[:end]
    return Run(offset, data, end)


def _check_length(length: int, offset: int) -> None:
    if length > MAX_LINE:
        raise CorruptError(f"a line is longer than {MAX_LINE} bytes", f"byte {offset}")


def _plain(source: Source, start: int, stop: int) -> Generator[Buffer, None, None]:
    """The bytes from `start` on: a stream to a little past `stop`, then ever larger reads as asked for."""
    size = source.size
    position = min(size, stop + PAST_THE_END)
    with ended(source.stream(start, position)) as stream:
        yield from stream
    step = PAST_THE_END
    while position < size:
        end = min(size, position + step)
        yield source.read(position, end)
        position = end
        step = min(2 * step, _LONGEST_STEP)


def _first_line(pieces: Iterable[Buffer], offset: int, stop: int) -> tuple[int, Buffer]:
    """Where the first line begins that follows a newline, and what is at hand of it; `stop` if none begins before.

    What is before it belongs to a line of an earlier split, perhaps a long one: it is let go of at once.
    """
    for piece in pieces:
        newline = bytes(piece).find(b"\n")
        if newline >= 0:
            return min(stop, offset + newline + 1), piece[newline + 1 :]
        offset += len(piece)
        if offset >= stop:
            break
    return stop, b""


def _pieces(chunks: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in pieces of `_RUN` at most, none of them empty."""
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(chunk), _RUN):
            yield view[start : start + _RUN]


def _has_newline(piece: Buffer) -> bool:
    return b"\n" in bytes(piece[-_TAIL:]) or b"\n" in bytes(piece)
