"""Streamed formats with known counts: the splits of an index, each read from the place that the index tells.

Records come out as the streamed format gives them. How the places are found is `streamio.index`'s part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from streamio.formats.base import Bad, Block, CorruptError, Counts, Places, Record, Rows, Source
from streamio.formats.names import Codec, codec_of
from streamio.formats.rows import ArrowRows, Records, one_batch
from streamio.formats.unpacked import Cut, Unpacked, first_read
from streamio.iterators import ended

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.formats.base import StreamedFormat

#: Formats whose compressed shards are read as text from the middle, with what ends a text that is cut behind a record.
ENDS = {"jsonl": b"", "text": b"", "tar": bytes(1024)}


class Where(NamedTuple):
    """One split.

    Attributes:
        first: Records of the shard before it.
        records: Its slots.
        begin: Byte of the shard that reading begins with; -1 where the split is the whole shard.
        end: Byte of the shard at which the next split's reading begins; the shard's size for the last one.
        unit: Where in the text that byte stands; the same byte where nothing is compressed.
        start: Where in the text the split's first record begins.
        stop: The same for the next split; -1 for the last one.
    """

    first: int
    records: int
    begin: int
    end: int
    unit: int
    start: int
    stop: int


@dataclass(frozen=True)
class Points:
    """The splits of many shards, one entry a split, in the order of `urls` and of each shard; arrays of int64.

    Attributes:
        shards: Splits of each shard.
        salt: What makes the keys of all URLs different.
        keys: A number for each shard's URL, uint64.
        records: Slots of each split.
        nbytes: Bytes that it takes decoded.
        wire: Bytes to be read for it.
        begin: See `Where`.
        skip: Bytes of the text between what stands at `begin` and the first record.
        start: See `Where`.
    """

    shards: NDArray[np.int64]
    salt: int
    keys: NDArray[np.uint64]
    records: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    wire: NDArray[np.int64]
    begin: NDArray[np.int64]
    skip: NDArray[np.int64]
    start: NDArray[np.int64]

    @classmethod
    def of(cls, urls: Sequence[str], shards: NDArray[np.int64], **columns: NDArray[np.int64]) -> Points:
        """Points of shards with these URLs, each URL once."""
        salt, keys = 0, _keys(urls, 0)
        while len(np.unique(keys)) < len(urls):
            salt += 1
            keys = _keys(urls, salt)
        return cls(shards, salt, keys, **columns)

    def of_shard(self, url: str) -> slice:
        """The entries of a shard.

        Raises:
            KeyError: It is not known.
        """
        key = _keys([url], self.salt)[0]
        at = int(np.searchsorted(self._sorted, key))
        if at == len(self._sorted) or self._sorted[at] != key:
            raise KeyError(url)
        shard = int(self._order[at])
        return slice(int(self._ends[shard] - self.shards[shard]), int(self._ends[shard]))

    def where(self, source: Source, split: int) -> Where:
        """One split of a shard."""
        entries = self.of_shard(source.url)
        at, last = entries.start + split, entries.start + split + 1 == entries.stop
        begin, start = int(self.begin[at]), int(self.start[at])
        return Where(
            first=int(self.records[entries.start : at].sum()),
            records=int(self.records[at]),
            begin=begin,
            end=source.size if last else int(self.begin[at + 1]),
            unit=start - int(self.skip[at]),
            start=start,
            stop=-1 if last else int(self.start[at + 1]),
        )

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.keys).astype(np.int64)

    @cached_property
    def _sorted(self) -> NDArray[np.uint64]:
        return self.keys[self._order]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.shards)


class Seeking:
    """A streamed format as an indexed one (`IndexedFormat`, `HintedFormat`, `PiecewiseFormat`).

    Args:
        format: The streamed format.
        points: The splits of the data set's shards.
    """

    def __init__(self, format: StreamedFormat, points: Points) -> None:  # noqa: A002 - the word of the field
        self.name: str = format.name
        self.suffixes: tuple[str, ...] = format.suffixes
        self._format = format
        self._points = points

    def count(self, source: Source) -> Counts:
        """What the index says; nothing is read."""
        points, entries = self._points, self._points.of_shard(source.url)
        records, nbytes, wire = (tuple(each[entries].tolist()) for each in (points.records, points.nbytes, points.wire))
        return Counts(records, nbytes, wire)

    def ranges(self, source: Source, split: int) -> list[tuple[int, int]]:
        """The bytes that reading a split begins with."""
        where = self._points.where(source, split)
        if where.begin < 0:
            return [(0, source.size)]
        if where.stop < 0:
            return [(where.begin, source.size)]
        if codec_of(source.url) is None and not self._format.cuttable(source.url):
            return [(where.begin, where.end)]
        return [first_read(where.begin, where.end, source.size)]

    def load(self, source: Source, split: int) -> Rows:
        """Read and decode one split whole.

        Raises:
            CorruptError: It holds more or fewer records than the index says, as its shard was changed unnoticed.
        """
        return _joined(list(self._blocks(source, split)))

    def pieces(self, source: Source, split: int) -> Iterator[Rows]:
        """The rows of a split in file order, some at a time; errors as for `load`, behind the rows before them."""
        for block in self._blocks(source, split):
            yield _joined([block])

    def _blocks(self, source: Source, split: int) -> Iterator[Block]:
        """The slots of a split; one stands for what is lost at the end of a damaged shard, as in a streamed plan."""
        where = self._points.where(source, split)
        done = 0
        lost: Bad | None = None
        with ExitStack() as opened:
            blocks = opened.enter_context(ended(self._read(source, where, opened)))
            while True:
                try:
                    block = next(blocks, None)
                except CorruptError as error:
                    lost = Bad("corrupt", f"{error}; the rest of the shard is lost", error.position)
                    one = np.array([-1], np.int64)
                    block = Block(Records([None], {0: lost}), one, one + 1)
                if block is None:
                    break
                done += len(block.index)
                if done > where.records:
                    break
                yield block
                if lost is not None:
                    break
        if done != where.records:
            found = f"more than {where.records}" if done > where.records else str(done)
            raise CorruptError(
                f"it holds {found} records where the index says {where.records}: it was changed since, or is damaged"
                f"{f' ({lost.message})' if lost is not None else ''}. Make the index anew (`streamio index`)",
                f"split {split}",
            )

    def _read(self, source: Source, where: Where, opened: ExitStack) -> Iterator[Block]:
        """The slots of a split, and no others, from the format."""
        if where.begin < 0:
            return self._format.blocks(source, 0, source.size)
        codec = codec_of(source.url)
        last = where.stop < 0
        view = source
        size = source.size
        if codec is not None:
            view = opened.enter_context(closing(unpacked(source, codec, where)))
            size = view.size
        stop = size if last else where.stop
        begin = where.start or None
        if self._format.cuttable(view.url):
            return self._format.blocks(view, where.start, stop, 0, begin)
        if not last:
            view = Cut(view, stop, ENDS[self.name])
        return self._format.blocks(view, 0, view.size, where.first, begin)


def seekable(format: StreamedFormat, url: str) -> bool:  # noqa: A002
    """Whether a shard's splits can begin in its middle, as far as its format goes."""
    return format.name in ENDS or (codec_of(url) is None and format.cuttable(url))


def unpacked(source: Source, codec: Codec, where: Where) -> Unpacked:
    """The text of a split, and of what follows."""
    return Unpacked(source, codec, where.begin, where.unit, source.size if where.stop < 0 else where.end)


@runtime_checkable
class Numbered(Rows, Protocol):
    """Rows that tell what becomes of their `__index__`, where that is not the number of the record."""

    def index_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The `__index__` of the slots at these places; -1 where one stands for what is lost."""
        ...


class IndexedRecords(Records):
    """Records with what becomes of their `__index__` (`Numbered`).

    Args:
        values: The records; anything where they are bad.
        bad: Slots that hold no record, by place.
        index: As `Block.index`.
    """

    __slots__ = ("_index",)

    def __init__(self, values: list[Any], bad: dict[int, Bad], index: NDArray[np.int64]) -> None:
        super().__init__(values, bad)
        self._index = index

    def index_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """As for `Numbered`."""
        return self._index[places]

    def take(self, places: Places) -> list[Record]:
        """Records at these places, copied: one may stand in for another that was dropped."""
        return [dict(record) if type(record) is dict else record for record in super().take(places)]


def _joined(blocks: Sequence[Block]) -> Rows:
    """The slots of blocks behind each other."""
    if not blocks:
        return Records([])
    bad: dict[int, Bad] = {}
    done = 0
    for block in blocks:
        bad.update((done + place, value) for place, value in block.rows.bad.items())
        done += len(block.index)
    rows = [block.rows for block in blocks]
    if all(type(each) is ArrowRows for each in rows):
        return rows[0] if len(rows) == 1 else _arrow(rows, int(blocks[0].index[0]), bad)
    values: list[Any] = []
    for each in rows:
        fine = np.ones(len(each), bool)
        fine[list(each.bad)] = False
        taken = iter(each.take(np.flatnonzero(fine) if each.bad else slice(0, len(each))))
        values += [next(taken) if good else None for good in fine.tolist()] if each.bad else taken
    return IndexedRecords(values, bad, np.concatenate([block.index for block in blocks]))


def _arrow(rows: Sequence[Any], first: int, bad: dict[int, Bad]) -> ArrowRows:
    import pyarrow as pa

    batches = [each.arrow(slice(0, len(each))) for each in rows]
    return ArrowRows(one_batch(pa.Table.from_batches(batches)), first, bad)


def _keys(urls: Sequence[str], salt: int) -> NDArray[np.uint64]:
    """A number for each URL: of the URLs themselves workers would hold a second copy."""
    more = salt.to_bytes(8, "little")
    digests = (hashlib.blake2b(url.encode("utf-8", "surrogatepass"), digest_size=8, salt=more) for url in urls)
    return np.frombuffer(b"".join(each.digest() for each in digests), np.uint64)
