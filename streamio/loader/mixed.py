"""Makes the batches of a mixture: each place is filled by its source's next record in that lane, pass after pass.

Which source that is comes from the plan; a source's slots are read as those of any indexed data set, in its own lanes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.errors import TooManyDropsError
from streamio.loader.chunk import Chunk, Values, join, joined, numbered, pick
from streamio.loader.indexed import IndexedMaker
from streamio.loader.memory import keep_freed_memory
from streamio.loader.mixed_spec import MixedSpec
from streamio.loader.server import DECODE_THREADS, SpecWork
from streamio.loader.spec import Made, Start
from streamio.loader.threads import Threads
from streamio.observe.drops import Drop
from streamio.observe.stats import IoCounts
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamio.formats.base import Bad
    from streamio.loader.server import Work
    from streamio.loader.spec import Spec
    from streamio.storage.reader import Reader


def work_of(spec: Spec | MixedSpec) -> Work:
    """What a server works on."""
    return MixedWork(spec) if isinstance(spec, MixedSpec) else SpecWork(spec)


class MixedWork:
    """Work on a mixture: a reader for each source, and threads that all share; they serve all iterations."""

    def __init__(self, spec: MixedSpec) -> None:
        self.spec = spec
        self._readers: list[Reader] = []
        self._threads: tuple[Threads, Threads] | None = None

    def begin(self, start: Start, map_threads: Threads | None) -> MixedMaker:
        """A maker for an iteration."""
        if self._threads is None:
            from streamio.storage.reader import Reader

            keep_freed_memory()
            self._readers = [Reader(source.read) for source in self.spec.sources]
            self._threads = Threads(DECODE_THREADS, "streamio-decode"), Threads(1, "streamio-decode-heavy")
        return MixedMaker(self.spec, self._readers, self._threads, start, map_threads)

    def counts(self) -> IoCounts:
        """The readers' counters."""
        counters = [reader.counters for reader in self._readers]
        return IoCounts(*(sum(getattr(each, item.name) for each in counters) for item in fields(IoCounts)))

    def close(self) -> None:
        """Close the readers, and end the threads that wait for them."""
        for reader in self._readers:
            reader.close()
        self._readers = []
        for threads in self._threads or ():
            threads.close()
        self._threads = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_readers": [], "_threads": None}


class MixedMaker:
    """Makes batches; keeps what it reads of each source in each lane.

    Args:
        spec: The mixture.
        readers: Where bytes of each source come from.
        threads: Where splits are decoded, and where heavy ones are.
        start: The epoch; batches may be asked for in any order, rising k is fastest.
        map_threads: Where the users' maps run; None for the calling thread.
    """

    def __init__(
        self,
        spec: MixedSpec,
        readers: list[Reader],
        threads: tuple[Threads, Threads],
        start: Start,
        map_threads: Threads | None = None,
    ) -> None:
        self._spec = spec = spec.at(start)
        self._plan = plan = spec.plan(start)
        self._sources = []
        for number, source in enumerate(spec.sources):
            source = replace(source, columnar=spec.columnar, records=spec.records)
            lengths = [plan.lane_length(number, column) for column in range(plan.grid.columns)]

            def make(turn: int, source: Spec = source, reader: Reader = readers[number]) -> IndexedMaker:
                return IndexedMaker(source, reader, threads, Start(start.epoch, turn=turn), map_threads)

            self._sources.append(_Source(make, lengths))

    def make(self, k: int) -> Made:
        """This rank's share of global batch k.

        Raises:
            TooManyDropsError: A source whose record is wanted has not one good record.
        """
        made = Made()
        drops: Counter[tuple[str, Bad]] = Counter()
        made.values = self._joined([self._make_row(row, k, made, drops) for row in self._spec.rows])
        made.drops = [Drop(bad.reason, shown(url), bad.position, bad.message, n) for (url, bad), n in drops.items()]
        return made

    def close(self) -> None:
        """End what is being loaded."""
        for source in self._sources:
            source.close()

    def _make_row(self, row: int, k: int, made: Made, drops: Counter[tuple[str, Bad]]) -> Values:
        spec, column = self._spec, k % self._plan.grid.columns
        sources, before = self._plan.batch(row, k)
        chunks: dict[int, Chunk] = {}
        for source, count in zip(*(each.tolist() for each in np.unique(sources, return_counts=True)), strict=True):
            chunks[source] = self._sources[source].slots(row, column, before[source], count)
            for split, bad, lost in chunks[source].losses():
                drops[spec.sources[source].url(split), bad] += lost
        nothing = all(chunk.lost == len(chunk) for chunk in chunks.values())
        parts: list[Values] = []
        held, places = 0, np.full(len(sources), -1, np.int64)
        for source, chunk in chunks.items():
            good, order = chunk.good(), numbered(_fine(chunk))
            least = int(source in spec.mandatory or (nothing and not parts))  # where places may stay empty
            refill = chunk.lost if spec.sources[source].on_drop == "refill" else max(0, least - len(good))
            if refill:
                good = good if len(good) else self._next_good(source, row, column, before[source] + len(chunk))
                order[np.flatnonzero(order < 0)[:refill]] = list(islice(cycle(range(len(good))), refill))
                made.refilled += refill
            places[sources == source] = np.where(order >= 0, order + held, -1)
            parts.append(self._marked(good, source))
            held += len(good)
            name = spec.names[source]
            made.sources[name] = made.sources.get(name, 0) + int((order >= 0).sum())
        return _picked(self._joined(parts), places[places >= 0])

    def _next_good(self, source: int, row: int, column: int, behind: int) -> Values:
        try:
            return self._sources[source].next_good(row, column, behind)
        except TooManyDropsError as error:
            raise TooManyDropsError(f"Source {self._spec.names[source]!r}: {error}") from None

    def _marked(self, values: Values, source: int) -> Values:
        """The values with their source's name, where it is wanted."""
        name = self._spec.names[source]
        if not self._spec.provenance or not len(values):
            return values
        if isinstance(values, list):
            for value in values:
                if not isinstance(value, dict):
                    raise TypeError(
                        f"provenance=True of the mixture puts __source__ into records, and the map of source {name!r} "
                        f"returned a {type(value).__name__}: return a dict, or leave provenance out."
                    )
                value["__source__"] = name
            return values
        import pyarrow as pa

        column = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(len(values), np.int32)), pa.array([name], pa.string())
        )
        return pa.RecordBatch.from_arrays([*values.columns, column], names=[*values.schema.names, "__source__"])

    def _joined(self, parts: list[Values]) -> Values:
        """Values of several sources behind each other: one batch of columns where that is wanted, else records."""
        from streamio.formats.rows import to_records

        batches = [part for part in parts if not isinstance(part, list) and len(part)]
        if not self._spec.unite and any(not batch.schema.equals(batches[0].schema) for batch in batches):
            parts = [part if isinstance(part, list) else to_records(part) for part in parts]
        return join(parts)


class _Source:
    """The lanes of one source, pass after pass.

    Args:
        make: Makes what reads a pass, by its number.
        lengths: Slots of a lane of each column.
    """

    def __init__(self, make: Callable[[int], IndexedMaker], lengths: list[int]) -> None:
        self._make = make
        self._lengths = lengths
        self._passes: dict[int, IndexedMaker] = {}
        self._turns: dict[tuple[int, int], int] = {}  # the pass that each lane is in

    def slots(self, row: int, column: int, first: int, count: int) -> Chunk:
        """The finished slots at places of a lane, counted over all passes."""
        parts = []
        while count:
            turn, low = divmod(first, self._lengths[column])
            high = min(low + count, self._lengths[column])
            parts.append(self._in(turn, row, column).slots(row, column, low, high))
            first, count = first + high - low, count - high + low
        return joined(parts)

    def next_good(self, row: int, column: int, behind: int) -> Values:
        """The first good record from a place of a lane on."""
        turn, last = divmod(behind - 1, self._lengths[column])
        return self._in(turn, row, column).next_good(row, last * len(self._lengths) + column)

    def close(self) -> None:
        """End what is being loaded."""
        for each in self._passes.values():
            each.close()
        self._passes.clear()

    def _in(self, turn: int, row: int, column: int) -> IndexedMaker:
        """What reads a pass; the lane leaves the one that it was in."""
        before = self._turns.get((row, column), turn)
        if before != turn and not self._passes[before].leave(row, column):
            del self._passes[before]
        self._turns[row, column] = turn
        if turn not in self._passes:
            self._passes[turn] = self._make(turn)
        return self._passes[turn]


def _fine(chunk: Chunk) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which slots have a record."""
    return np.ones(len(chunk), bool) if chunk.place is None else chunk.place >= 0


def _picked(values: Values, places: np.ndarray[Any, np.dtype[np.int64]]) -> Values:
    """The values at these places; a record that stands in for others is copied, so that each can be changed alone."""
    picked = pick(values, places)
    if isinstance(picked, list):
        seen: set[int] = set()
        for at, place in enumerate(places.tolist()):
            if place in seen and isinstance(picked[at], dict):
                picked[at] = dict(picked[at])
            seen.add(place)
    return picked
