"""Reads shards for an index: one shard in, its entry out; also in worker processes.

Which shards are read, by whom, and what becomes of the entries is decided in `build`.
"""

from __future__ import annotations

import os
import signal
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.formats.base import Block, CorruptError, IndexedFormat, StreamedFormat
from streamio.formats.names import codec_of
from streamio.formats.seeking import seekable
from streamio.formats.unpacked import Unpacked
from streamio.index.table import SPLITS, Entry
from streamio.iterators import ended
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.formats.base import Format, Source
    from streamio.storage.reader import Reader
    from streamio.storage.settings import ReadSettings
    from streamio.storage.shards import Shard

#: Decoded bytes of a split, at about. Fixed: splits, and so the order, must not depend on who made the index.
SPLIT_BYTES = 4 << 20

#: Shards that are fetched ahead at most, however small they are.
_HINTED = 16


class StoppedError(Exception):
    """The index is not made any more."""


@dataclass(frozen=True)
class Scanner:
    """What reads the shards of one data set.

    Attributes:
        format: How to decode them.
        options: The options of it that counts depend on, as text.
    """

    format: Format
    options: str

    def entry(self, source: Source, version: str | None, stopped: threading.Event | None = None) -> Entry:
        """Read one shard.

        Args:
            source: The shard.
            version: Its version.
            stopped: Set where nobody wants the entry any more.

        Raises:
            FormatError: The shard has no place in a data set of this format.
            ReadError: It can't be read.
            StoppedError: `stopped` was set.
        """
        form = self.format
        codec = codec_of(source.url) if isinstance(form, StreamedFormat) else None
        blank = Entry(shown(source.url), source.size, version, form.name, self.options, codec)
        if isinstance(form, IndexedFormat):
            return _counted(form, source, blank)
        return _read(form, source, blank, stopped)

    def entries(
        self, reader: Reader, shards: Sequence[Shard], stopped: threading.Event | None = None
    ) -> Iterator[Entry]:
        """Read shards one after the other, with those that come next on their way; errors as for `entry`."""
        for at, shard in enumerate(shards):
            for following in shards[at : at + 1 + _HINTED]:
                if not reader.hint(following, 0, following.size):
                    break
            yield self.entry(reader.source(shard), shard.version, stopped)


def _counted(form: IndexedFormat, source: Source, blank: Entry) -> Entry:
    try:
        counts = form.count(source)
    except CorruptError as error:
        return replace(blank, error=str(error))
    none = [-1] * len(counts.records)
    columns = (counts.records, counts.nbytes, counts.wire, none, [0] * len(none), [0] * len(none))
    return replace(blank, splits={name: list(column) for name, column in zip(SPLITS, columns, strict=True)})


def _read(form: StreamedFormat, source: Source, blank: Entry, stopped: threading.Event | None) -> Entry:
    error = None
    codec = codec_of(source.url)
    cutter = Cutter(source.size, packed=codec is not None, whole=not seekable(form, source.url))
    with ExitStack() as opened:
        view: Source = source
        if codec is not None and not cutter.whole:
            view = opened.enter_context(closing(Unpacked(source, codec, noted=cutter.note)))
        blocks = opened.enter_context(ended(form.blocks(view, 0, view.size) if source.size else iter(())))
        try:
            for block in blocks:
                cutter.add(block)
                if stopped is not None and stopped.is_set():
                    raise StoppedError
        except CorruptError as damage:
            cutter.lose()
            error = f"{damage}{f' ({damage.position})' if damage.position else ''}"
    return replace(blank, splits=cutter.splits(), error=error)


@dataclass
class Cutter:
    """Cuts the slots of one shard into splits, each of which begins where reading can.

    Attributes:
        size: Length of the shard in bytes.
        packed: Whether it is compressed.
        whole: Whether it is one split.
    """

    size: int
    packed: bool
    whole: bool
    _units: list[int] = field(default_factory=list)  # bytes of the shard
    _texts: list[int] = field(default_factory=list)  # where in the text they begin
    _passed: int = 0  # units that begin before the last slot, or with it
    _slots: int = 0
    _nbytes: int = 0
    _cuts: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def note(self, byte: int, text: int) -> None:
        """A unit of compressed bytes begins there."""
        self._units.append(byte)
        self._texts.append(text)

    def add(self, block: Block) -> None:
        """The next slots."""
        count = len(block.index)
        before = np.concatenate(([0], np.cumsum(block.nbytes)))[:-1] + self._nbytes
        if not self._cuts:
            self._cuts.append((0, 0, -1 if self.whole else 0, 0, 0))
        if not self.whole and block.seek is not None:
            places = self._places(block.seek[:count])
            self._cut(places, before[places], block.seek)
        self._slots += count
        self._nbytes += int(block.nbytes.sum())

    def lose(self) -> None:
        """Nothing that follows can be read: one slot stands for it."""
        if not self._cuts:
            self._cuts.append((0, 0, -1 if self.whole else 0, 0, 0))
        self._slots += 1
        self._nbytes += 1

    def splits(self) -> dict[str, list[int]]:
        """The splits so far, as the columns of an `Entry`."""
        cuts = np.array(self._cuts, np.int64).reshape(-1, 5)
        slot, nbytes, begin, skip, start = cuts.T
        follows = np.maximum(begin, 0)
        columns: tuple[NDArray[np.int64], ...] = (
            np.diff(slot, append=self._slots),
            np.diff(nbytes, append=self._nbytes),
            np.diff(follows, append=self.size),
            begin,
            skip,
            start,
        )
        if not len(cuts):
            columns = (slot,) * len(SPLITS)
        return {name: column.tolist() for name, column in zip(SPLITS, columns, strict=True)}

    def _places(self, seek: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots that a split may begin with."""
        if not self.packed:
            return np.flatnonzero(seek >= 0)
        units = np.searchsorted(np.array(self._texts, np.int64), seek, side="right")
        first = np.diff(units, prepend=self._passed) > 0  # of those that begin in a unit
        self._passed = int(units[-1]) if len(units) else self._passed
        return np.flatnonzero(first & (seek >= 0))

    def _cut(self, places: NDArray[np.int64], before: NDArray[np.int64], seek: NDArray[np.int64]) -> None:
        at = 0
        while True:
            at = max(at, int(np.searchsorted(before, self._cuts[-1][1] + SPLIT_BYTES)))
            if at >= len(places):
                return
            place = int(places[at])
            start = int(seek[place])
            begin, skip = start, 0
            if self.packed:
                unit = bisect_right(self._texts, start) - 1
                begin, skip = self._units[unit], start - self._texts[unit]
            self._cuts.append((self._slots + place, int(before[at]), begin, skip, start))
            at += 1


# In worker processes

_scanner: Scanner | None = None
_reader: Reader | None = None
_stopped: Any = None


def begin(scanner: Scanner, settings: ReadSettings, stopped: Any) -> None:
    """Make a process ready for `scan`: it ignores Ctrl-C, which its parent hears, and ends with its parent."""
    global _scanner, _reader, _stopped  # how a pool's initializer hands things to its calls
    from streamio.storage.reader import Reader

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _scanner, _reader, _stopped = scanner, Reader(settings), stopped


def scan(shards: Sequence[Shard]) -> tuple[list[Entry], Exception | None]:
    """Read shards in a worker process: their entries, up to the shard that failed, and with what."""
    assert _scanner is not None
    assert _reader is not None
    done: list[Entry] = []
    try:
        done.extend(_scanner.entries(_reader, shards, _stopped))
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        return done, error
    return done, None


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
