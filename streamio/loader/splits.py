"""Loads the splits of an indexed data set in threads; those too large for memory are decoded piece by piece.

Which splits are wanted, and for how long, is decided in `lanes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamio.formats.base import (
    Bad,
    CorruptError,
    HintedFormat,
    IndexedFormat,
    PiecewiseFormat,
    Places,
    Record,
    Rows,
)
from streamio.formats.rows import LeftOut
from streamio.formats.seeking import Numbered
from streamio.iterators import end
from streamio.loader.chunk import join, pick, taken
from streamio.loader.threads import wait
from streamio.plan import IndexedSplits
from streamio.storage.parts import blocks

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from streamio.loader.spec import Spec
    from streamio.loader.threads import Threads
    from streamio.storage.budget import Budget
    from streamio.storage.reader import Reader

#: A split as loaded, or why it could not be.
Split: TypeAlias = "Rows | Bad"

#: Decoded bytes of a split from which on one thread decodes all such: what allocators keep, they keep for each thread.
HEAVY = 16 << 20

#: Decoded bytes from which on a split is read in pieces. Fixed: what a damaged split gives must not depend on options.
LARGE = 64 << 20


class SplitLoader:
    """Loads splits of one data set in threads, and remembers those that can't be decoded.

    Args:
        spec: The data set.
        reader: Where bytes come from.
        threads: Where splits are loaded, and where heavy ones are.

    Attributes:
        splits: The splits.
        budget: The process's budget for read-ahead.
        bad: Splits that turned out to be damaged.
        mean: Decoded bytes of a record, at about.
    """

    def __init__(self, spec: Spec, reader: Reader, threads: tuple[Threads, Threads]) -> None:
        assert isinstance(spec.splits, IndexedSplits)
        assert isinstance(spec.format, IndexedFormat)
        self.splits = spec.splits
        self.budget = reader.budget
        self.bad: dict[int, Bad] = {}
        self.mean = max(1.0, spec.record_bytes)
        self._shards = spec.shards
        self._format = spec.format
        self._reader = reader
        self._slot_bytes = spec.splits.wire / spec.splits.stored
        self._threads, self._heavy = threads

    def used(self, split: NDArray[np.int64]) -> None:
        """Count what slots of these splits take up in storage."""
        self._reader.counters.add(bytes_needed=round(float(self._slot_bytes[split].sum())))

    def start(self, split: int) -> Coming:
        """Begin to load a split that is needed now."""
        self._fetch(split)  # all at once, while they are decoded one after the other
        return Coming(self._submit(split), self.budget)

    def start_ahead(self, split: int) -> Coming | None:
        """Begin to load a split that is needed later; None where the budget does not allow it yet."""
        if isinstance(self._format, HintedFormat):
            if not self._fetch(split):
                return None
            return Coming(self._submit(split, later=True), self.budget)
        cost = self._cost(split)
        if not self.budget.try_acquire(cost):
            return None
        return Coming(self._submit(split), self.budget, cost)

    def large(self, split: int) -> bool:
        """Whether a split is to be read in pieces."""
        return int(self.splits.nbytes[split]) > LARGE and isinstance(self._format, PiecewiseFormat)

    def pieces(self, split: int) -> Pieces:
        """A large split, to be read from its start on."""
        assert isinstance(self._format, PiecewiseFormat)
        shard, part = self._shards[int(self.splits.shard[split])], int(self.splits.part[split])
        pieces = self._format.pieces(self._reader.source(shard), part)
        return Pieces(pieces, int(self.splits.stored[split]), part, int(self.splits.first[split]))

    def _submit(self, split: int, *, later: bool = False) -> Future[tuple[Split, int]]:
        threads = self._heavy if int(self.splits.nbytes[split]) > HEAVY else self._threads
        return threads.submit(lambda: self._load(split, later=later))

    def _cost(self, split: int) -> int:
        """Bytes that a split loaded ahead is counted with."""
        return int(max(self.splits.nbytes[split], self.splits.wire[split]))

    def _fetch(self, split: int) -> bool:
        """Let the reader fetch a split's bytes, as far as the budget goes; whether all are on their way."""
        if not isinstance(self._format, HintedFormat) or split in self.bad:
            return True
        shard, part = self._shards[int(self.splits.shard[split])], int(self.splits.part[split])
        try:
            ranges = blocks(self._format.ranges(self._reader.source(shard), part))
        except CorruptError:  # told when it is loaded
            return True
        return all(self._reader.hint(shard, start, stop) for start, stop in ranges)

    def _load(self, split: int, *, later: bool = False) -> tuple[Split, int]:
        """The split, and the bytes of the budget that it holds until it is needed."""
        if split in self.bad:
            return self.bad[split], 0
        rows = self._decoded(split)
        held = int(self.splits.nbytes[split]) if later else 0
        self.budget.force(held)  # in place of what its bytes held until now
        return rows, held

    def _decoded(self, split: int) -> Split:
        shard, part = self._shards[int(self.splits.shard[split])], int(self.splits.part[split])
        records = int(self.splits.stored[split])
        try:
            rows = self._format.load(self._reader.source(shard), part)
            if len(rows) == records:
                return rows
            bad = Bad("corrupt", f"it holds {len(rows)} records where its footer says {records}", f"split {part}")
        except CorruptError as error:
            bad = Bad("corrupt", str(error), error.position or f"split {part}")
        self.bad[split] = bad
        return bad


class Coming:
    """A split on its way.

    Args:
        future: Its load, and the bytes of the budget that it has come to hold.
        budget: The budget.
        held: Bytes that it holds already.
    """

    def __init__(self, future: Future[tuple[Split, int]], budget: Budget, held: int = 0) -> None:
        self._future = future
        self._budget = budget
        self._held = held

    def arrive(self) -> Split:
        """Wait for it; it is not ahead any more."""
        try:
            split, held = wait(self._future)
        finally:
            self._budget.release(self._held)
        self._budget.release(held)
        return split

    def give_up(self) -> None:
        """Do without it."""
        self._budget.release(self._held)
        if not self._future.cancel():
            self._future.add_done_callback(self._gave_up)

    def _gave_up(self, future: Future[tuple[Split, int]]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._budget.release(future.result()[1])


class Pieces:
    """The rows of a large split around a place that moves forward. Behaves as `Rows` for the places it holds.

    A damaged piece takes all that follow it with it, wherever reading began.

    Args:
        pieces: The rows from the split's start on.
        records: Rows that they hold in all.
        part: Number of the split in its shard.
        first: Number of its first record there.
    """

    def __init__(self, pieces: Iterator[Rows], records: int, part: int, first: int = 0) -> None:
        self._pieces = pieces
        self._records = records
        self._part = part
        self._first = first
        self._held: list[tuple[int, Rows]] = []  # with the number of their first row
        self._read = 0
        self._damage: Bad | None = None
        self.bad: Mapping[int, Bad] = {}
        self.left_out: LeftOut | None = None

    def __len__(self) -> int:
        return self._records

    def reach(self, low: int, high: int) -> bool:
        """Hold the rows [low, high), and let go of those before; False where they have been let go already."""
        if low < (self._held[0][0] if self._held else self._read):
            return False
        while self._read < high and self._damage is None:
            self._held = [(first, rows) for first, rows in self._held if first + len(rows) > low]
            self._next()
        self._held = [(first, rows) for first, rows in self._held if first + len(rows) > low]
        bad = {first + place: value for first, rows in self._held for place, value in rows.bad.items()}
        if self._damage is not None:
            bad.update(dict.fromkeys(range(max(low, self._read), high), self._damage))
        self.bad = bad
        parts = [(first, getattr(rows, "left_out", None)) for first, rows in self._held]
        unwanted = [(first + part.places, part.why) for first, part in parts if part is not None]
        self.left_out = None
        if unwanted:
            self.left_out = LeftOut(np.concatenate([places for places, _ in unwanted]), unwanted[0][1])
        return True

    def take(self, places: Places) -> list[Record]:
        """Records at these places, which must be held."""
        values = self._taken(places, columnar=False)
        assert isinstance(values, list)
        return values

    def arrow(self, places: Places) -> pa.RecordBatch:
        """The same as columns; as records where the pieces have none."""
        return self._taken(places, columnar=True)

    def index_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The `__index__` of rows at these places, -1 where they are lost."""
        index = np.full(len(places), -1, np.int64)
        for first, rows in self._held:
            inside = np.flatnonzero((places >= first) & (places < first + len(rows)))
            told = places[inside] - first
            index[inside] = rows.index_of(told) if isinstance(rows, Numbered) else self._first + places[inside]
        return index

    def close(self) -> None:
        """End the read in flight."""
        end(self._pieces)
        self._held.clear()

    def _next(self) -> None:
        try:
            rows = next(self._pieces)
        except StopIteration:
            text = f"it holds {self._read} records where its footer says {self._records}"
            self._damage = Bad("corrupt", text, f"split {self._part}")
        except CorruptError as error:
            self._damage = Bad("corrupt", str(error), error.position or f"split {self._part}")
        else:
            self._held.append((self._read, rows))
            self._read += len(rows)

    def _taken(self, places: Places, *, columnar: bool) -> Any:
        wanted = np.arange(places.start, places.stop) if isinstance(places, slice) else places
        starts = np.array([first for first, _ in self._held], np.int64)
        piece = np.searchsorted(starts, wanted, side="right") - 1
        order = np.argsort(piece, kind="stable")
        parts = []
        for number in np.unique(piece).tolist():
            first, rows = self._held[number]
            parts.append(taken(rows, wanted[piece == number] - first, columnar=columnar))
        unsorted = np.empty_like(order)
        unsorted[order] = np.arange(len(order))
        return pick(join(parts), unsorted)
