"""Shards for the tests of indexes: compressed in several frames or members, and what streamed reading makes of them."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard

from streamio.formats.base import Bad, CorruptError, StreamedFormat
from streamio.formats.seeking import Numbered, Points, Seeking
from streamio.index.scan import Scanner
from streamio.index.table import SPLITS, Entry
from tests.formats.blocks import rows_of
from tests.formats.memory_source import MemorySource

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1),
    ".zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
}


def packed(data: bytes, suffix: str, cuts: Sequence[int] = ()) -> bytes:
    """Data in units (frames, members, streams) that are cut at these places."""
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    if len(places) == 1:
        return PACK[suffix](data)
    return b"".join(PACK[suffix](data[low:high]) for low, high in pairwise(places))


def entry_of(form: Any, source: MemorySource) -> Entry:
    return Scanner(form, "{}").entry(source, "v1")


def seeking(form: StreamedFormat, *entries: Entry) -> Seeking:
    """The format over these shards, as a data set makes it of their index."""
    lengths = np.array([len(entry.splits["split_records"]) for entry in entries], np.int64)
    columns = {
        name.removeprefix("split_"): np.array([value for entry in entries for value in entry.splits[name]], np.int64)
        for name in SPLITS
    }
    return Seeking(form, Points.of([entry.url for entry in entries], lengths, **columns))


def streamed(form: StreamedFormat, source: MemorySource) -> list[tuple[int, Any]]:
    """Index and value of each slot that streamed reading gives, with the one that stands for what is lost."""
    found: list[tuple[int, Any]] = []
    try:
        for slot in rows_of(form.blocks(source, 0, source.size)) if source.size else ():
            found.append((slot.index, slot.value))
    except CorruptError as error:
        found.append((-1, Bad("corrupt", f"{error}; the rest of the shard is lost", error.position)))
    return found


def indexed(form: Seeking, source: MemorySource, entry: Entry) -> list[tuple[int, Any]]:
    """The same through the index, split by split."""
    found: list[tuple[int, Any]] = []
    for split, records in enumerate(entry.splits["split_records"]):
        rows = form.load(source, split)
        assert len(rows) == records
        values = rows.take(np.array([at for at in range(records) if at not in rows.bad], np.int64))
        good = iter(values)
        numbers = np.arange(records)
        index = rows.index_of(numbers) if isinstance(rows, Numbered) else len(found) + numbers
        found += [(int(index[at]), rows.bad[at] if at in rows.bad else next(good)) for at in range(records)]
    return found
