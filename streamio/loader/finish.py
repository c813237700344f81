"""The last step from decoded slots to what the user gets: where they came from, and the user's own map."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.errors import DropRecord
from streamio.formats.base import Bad
from streamio.formats.rows import to_records
from streamio.loader.chunk import Chunk, Values
from streamio.partitions import conflict
from streamio.plan import generator
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from streamio.formats.base import Record
    from streamio.loader.spec import Spec
    from streamio.loader.threads import Threads


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a map asks for randomness of its own by a parameter named `rng`."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins without a signature
        return False


#: Formats whose records are numbered by the byte that they begin at.
BY_BYTE = ("jsonl", "text")


class Finisher:
    """Adds what the URL tells, `__shard__` and `__index__` where asked, and applies the user's map.

    Args:
        spec: The data set.
        epoch: The epoch, which a map's randomness is keyed by.
        threads: Where the map runs; None for the calling thread.
    """

    def __init__(self, spec: Spec, epoch: int, threads: Threads | None = None) -> None:
        self._spec = spec
        self._map = spec.map
        self._key = ("map", spec.seed, epoch)
        self._rng = spec.map is not None and takes_rng(spec.map)
        self._threads = threads if spec.map is not None else None
        self._adds = spec.provenance or (spec.partitions is not None and bool(spec.partitions.delivered))
        self._unit = "byte" if spec.format.name in BY_BYTE else "record"
        self._told: dict[int, dict[str, Any]] = {}  # partition values of splits

    def __call__(self, chunk: Chunk) -> Chunk:
        """The finished slots; those that the map leaves out are bad.

        Args:
            chunk: The decoded slots; its records are changed in place.

        Raises:
            FormatError: A partition key is also a column or key of the data.
        """
        if self._adds and not isinstance(chunk.values, list):
            values = self._with_columns(chunk)
            chunk = replace(chunk, values=values)
        elif self._adds:
            self._mark(chunk)
        return chunk if self._map is None else self._mapped(chunk)

    def _mapped(self, chunk: Chunk) -> Chunk:
        split, number, index = chunk.split.tolist(), chunk.number.tolist(), chunk.index.tolist()

        def finish(pair: tuple[int, Record]) -> Any:
            slot, record = pair
            return self._apply(record, split[slot], number[slot], index[slot])

        slots = chunk.good_slots()
        records = chunk.good()
        pairs = list(zip(slots, records if isinstance(records, list) else to_records(records), strict=True))
        done = [finish(pair) for pair in pairs] if self._threads is None else self._threads.map(finish, pairs)
        bad = dict(chunk.bad)
        place = np.full(len(chunk), -1, np.int64)
        good: list[Any] = []
        for slot, value in zip(slots, done, strict=True):
            if type(value) is Bad:
                bad[slot] = value
            else:
                place[slot] = len(good)
                good.append(value)
        whole = len(good) == len(chunk)
        return replace(chunk, values=good, bad=bad, place=None if whole else place)

    def _mark(self, chunk: Chunk) -> None:
        """Tell each record where it came from."""
        splits, index = chunk.split.tolist(), chunk.index.tolist()
        for slot, record in zip(chunk.good_slots(), chunk.good(), strict=True):
            told = self._partition(splits[slot])
            if not told.keys().isdisjoint(record):
                raise conflict(self._spec.url(splits[slot]), next(key for key in told if key in record))
            record.update(told)
            if self._spec.provenance:
                record["__shard__"] = self._spec.url(splits[slot])
                record["__index__"] = index[slot]

    def _partition(self, split: int) -> dict[str, Any]:
        """What the URL tells of the records of a split."""
        if split not in self._told:
            partitions = self._spec.partitions
            self._told[split] = {} if partitions is None else partitions.values(self._spec.url(split))
        return self._told[split]

    def _apply(self, record: Record, split: int, number: int, index: int) -> Any:
        """What the map makes of a record, or `Bad` where it leaves it out."""
        assert self._map is not None
        try:
            value = self._map(record, rng=generator(*self._key, split, number)) if self._rng else self._map(record)
        except DropRecord as drop:
            return Bad(drop.reason, drop.message, f"{self._unit} {index}")
        except Exception as error:
            if sys.version_info >= (3, 11):
                where = f"{shown(self._spec.url(split))} at {self._unit} {index}"
                error.add_note(f"Raised by the map given to StreamingDataset, for {where}.")
            raise
        if value is None:
            raise TypeError("map returned None: return the record, or raise streamio.DropRecord to leave it out")
        return value

    def _with_columns(self, chunk: Chunk) -> Values:
        """The columns with partition keys, `__shard__` and `__index__` beside them."""
        import pyarrow as pa

        batch: Any = chunk.values
        slots = np.arange(len(chunk))
        if chunk.place is not None:  # what stands at each place of the values
            slots = np.zeros(batch.num_rows, np.int64)
            slots[chunk.place[chunk.place >= 0]] = chunk.good_slots()
        splits, places = np.unique(chunk.split[slots], return_inverse=True)
        urls = [self._spec.url(int(split)) for split in splits]
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._spec.partitions is not None:
            for key, told in self._spec.partitions.columns(urls).items():
                if key not in self._spec.partitions.delivered:
                    continue
                if key in columns:
                    raise conflict(urls[0], key)
                text = pa.types.is_string(told.type) or pa.types.is_large_string(told.type)
                columns[key] = (told.dictionary_encode() if text else told).take(pa.array(places, pa.int64()))
        if self._spec.provenance:
            shard = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(urls, pa.string()))
            columns |= {"__shard__": shard, "__index__": pa.array(chunk.index[slots])}
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
