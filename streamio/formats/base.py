"""What a format is to the rest of streamio: two small protocols, one for each kind of plan.

An indexed format knows its record counts without reading the data (parquet's footer). A streamed format finds its
records by reading (lines, tar). A format object is its settings: a frozen, picklable dataclass that does no
I/O of its own; bytes come from a `Source`, which has retries, read-ahead and counting behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from streamio.formats.rowfilter import RowFilter

Record: TypeAlias = dict[str, Any]

Buffer: TypeAlias = bytes | memoryview
"""Bytes as a source gives them: with `len()`, slices and the buffer protocol; `bytes(data)` where more is needed."""

Places: TypeAlias = "slice | NDArray[np.int64]"
"""Which rows are wanted: a slice with start and stop, or places in any order, repeated or not."""


PAST_THE_END = 1 << 16
"""Bytes that are read along with a split that was cut at any byte, as its last record mostly ends there."""


class CorruptError(Exception):
    """Bytes that can't be decoded from here on. Raised by formats; the reader turns it into a drop.

    Args:
        message: What is wrong, for people ("checksum of tar header does not match").
        position: Where in the shard, in the format's own terms ("row group 3", "byte 1048576"); "" for all of it.
    """

    def __init__(self, message: str, position: str = "") -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, slots=True)
class Bad:
    """Stands where a record would, in a slot whose record can't be used.

    Attributes:
        reason: A short word under which drops are counted: `"json"`, `"corrupt"`, `"decode"`.
        message: What is wrong, for people.
        position: Where in the shard ("row group 3", "byte 4711", "sample 12"), with one space between word and number.
    """

    reason: str
    message: str
    position: str


class Row(NamedTuple):
    """One slot of a streamed split, for formats that make their records one by one (`streamio.formats.rows.blocked`).

    Attributes:
        index: Becomes the record's `__index__`: the sample's number in a tar, the byte offset of a line in the
            uncompressed text.
        nbytes: About what it takes in memory; windows are bounded by it, so it must follow from the bytes alone.
        value: The record, or `Bad`.
    """

    index: int  # type: ignore[assignment]  # a tuple's own index() is of no use here
    nbytes: int
    value: Record | Bad


class Source(Protocol):
    """Bytes of one shard. All calls block, are retried, checked for length and counted.

    Storage errors come out as `streamio.errors` and are never to be caught by a format.
    """

    @property
    def url(self) -> str:
        """The shard's URL."""
        ...

    @property
    def size(self) -> int:
        """The shard's length in bytes."""
        ...

    def read(self, start: int, stop: int) -> Buffer:
        """Exactly the bytes [start, stop)."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Several ranges at once, in the order asked for."""
        ...

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[Buffer]:
        """The bytes [start, stop) in order as chunks of any length, read ahead. Closing the iterator ends the reads."""
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """What the footer of one shard tells; one entry a split, in file order.

    Attributes:
        records: Records of each split; 0 is allowed.
        nbytes: Bytes that the wanted columns of each split take decoded, at about.
        wire: Bytes that the wanted columns of each split take up in the shard; a little more may be read.
        kept: Whether each split may hold a record that matches `filters=`; () where all do.
    """

    records: tuple[int, ...]
    nbytes: tuple[int, ...]
    wire: tuple[int, ...]
    kept: tuple[bool, ...] = ()


class Rows(Protocol):
    """Decoded slots in file order. `streamio.formats.rows` has one of records and one of Arrow columns."""

    @property
    def bad(self) -> Mapping[int, Bad]:
        """Slots that hold no record, by place."""
        ...

    def __len__(self) -> int: ...

    def take(self, places: Places) -> list[Record]:
        """Records at these places, in this order; anything where they are bad. Each is the caller's own."""
        ...


@runtime_checkable
class Columns(Protocol):
    """Rows that lie in columns: the loader hands these on without making Python objects where it can."""

    @property
    def bad(self) -> Mapping[int, Bad]:
        """As for `Rows`."""
        ...

    def __len__(self) -> int: ...

    def take(self, places: Places) -> list[Record]:
        """As for `Rows`."""
        ...

    def arrow(self, places: Places) -> pa.RecordBatch:
        """The same rows as columns."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """Slots of a streamed split that were decoded together, in file order.

    All but the cut between two blocks must follow from the bytes alone: where reading began, and how the bytes
    came in, must not show.

    Attributes:
        rows: Their records.
        index: What becomes each record's `__index__` (see `Row`), int64.
        nbytes: About what each takes in memory, int64; windows are closed by it.
        seek: For each slot the byte of the shard from which `blocks` can go on with it, and one more for what
            follows the last slot (-1 if not known), int64 of shape (slots + 1,). None where a split can be read from
            its start only.
    """

    rows: Rows
    index: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    seek: NDArray[np.int64] | None = None


@runtime_checkable
class IndexedFormat(Protocol):
    """A format that knows its counts."""

    name: str
    suffixes: tuple[str, ...]

    def count(self, source: Source) -> Counts:
        """Read what tells the counts (a footer).

        Raises:
            CorruptError: The shard is not of this format.
            FormatError: It is, but does not go with the options (a column that is not there).
        """
        ...

    def load(self, source: Source, split: int) -> Rows:
        """Read and decode one split whole.

        Raises:
            CorruptError: It can't be decoded.
        """
        ...


@runtime_checkable
class HintedFormat(IndexedFormat, Protocol):
    """An indexed format that can tell what it will read, so that the bytes are on their way before they are wanted."""

    def ranges(self, source: Source, split: int) -> Sequence[tuple[int, int]]:
        """The byte ranges that `load` will read at once; none where it reads nothing.

        Raises:
            CorruptError: They can't be told; `load` raises the same.
        """
        ...


@runtime_checkable
class PiecewiseFormat(IndexedFormat, Protocol):
    """An indexed format that can decode a large split bit by bit, so that it need not fit into memory."""

    def pieces(self, source: Source, split: int) -> Iterator[Rows]:
        """The rows of a split in file order, in pieces whose cuts follow from the footer alone.

        Raises:
            CorruptError: What follows can't be decoded; pieces before it have been yielded.
        """
        ...


@runtime_checkable
class NamedFormat(IndexedFormat, Protocol):
    """An indexed format whose footers name the columns."""

    def names(self, source: Source) -> list[str]:
        """The top-level columns of a shard that has been counted, wanted or not."""
        ...


@runtime_checkable
class FilteringFormat(IndexedFormat, Protocol):
    """An indexed format, a dataclass, that can leave out rows: it marks them `Bad` as the filter tells."""

    @property
    def filters(self) -> RowFilter | None:
        """What the rows must match."""
        ...


@runtime_checkable
class StreamedFormat(Protocol):
    """A format whose records are found by reading."""

    name: str
    suffixes: tuple[str, ...]

    def cuttable(self, url: str) -> bool:
        """Whether shards with this name may be read from any byte on (uncompressed lines).

        Where they are, `blocks` reads a split from the byte before it to `PAST_THE_END` bytes behind it at first.
        """
        ...

    def blocks(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Iterator[Block]:
        """The slots of the split [start, stop), (0, size) where not cuttable; blocks of some 256 KiB to 4 MiB.

        For a cuttable format the records that *begin* in the range belong to it, so that neighbouring splits
        neither lose nor repeat one wherever the cut falls.

        Args:
            source: The shard.
            start: First byte of the split.
            stop: Byte behind its last.
            first: Slots of the split that come before the first one wanted; 0 without `begin`.
            begin: Byte that a block told by `seek` for slot `first`; None for the start of the split.

        Raises:
            CorruptError: What follows can't be decoded; slots before it have been yielded.
        """
        ...


@dataclass(frozen=True, slots=True)
class Deferred:
    """A block that is decoded where it is used: Python's objects cost half in the thread that lets go of them.

    Attributes:
        nbytes: About what it takes in memory, decoded.
        decode: Makes it; it has one slot at least.
    """

    nbytes: int
    decode: Callable[[], Block]


@runtime_checkable
class DeferringFormat(StreamedFormat, Protocol):
    """A streamed format whose blocks can be found without being decoded."""

    def deferred(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Iterator[Deferred]:
        """What `blocks` gives, not decoded yet."""
        ...


@runtime_checkable
class ParsingFormat(StreamedFormat, Protocol):
    """A streamed format whose records can wait unparsed: what a window holds for long is a line, not a cold dict."""

    def unparsed(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Iterator[Deferred]:
        """What `blocks` gives, with the text of each record in its place, as the one column of a batch.

        All numbers are the same.
        """
        ...

    def parsed(self, texts: pa.LargeBinaryArray, index: NDArray[np.int64]) -> Rows:
        """The records of these texts.

        Args:
            texts: As `unparsed` gave them, in any order.
            index: The `__index__` of each.
        """
        ...


Format: TypeAlias = IndexedFormat | StreamedFormat
