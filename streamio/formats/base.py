"""What a format is to the rest of streamio: two small protocols, one for each kind of plan.

An indexed format knows its record counts without reading the data (parquet's footer). A streamed format finds its
records by reading (lines, tar). A format object is its settings: a frozen, picklable dataclass that does no
I/O of its own;
bytes come from a `Source`, which has retries, read-ahead and counting behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

Record: TypeAlias = dict[str, Any]


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
    """One slot of a streamed split.

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

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes [start, stop)."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several ranges at once, in the order asked for."""
        ...

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes [start, stop) in order as chunks of any length, read ahead. Closing the iterator ends the reads."""
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """What the footer of one shard tells; one entry a split, in file order.

    Attributes:
        records: Records of each split; 0 is allowed.
        nbytes: Bytes that the wanted columns of each split take decoded, at about.
        wire: Bytes that have to be read for each split.
    """

    records: tuple[int, ...]
    nbytes: tuple[int, ...]
    wire: tuple[int, ...]


class Rows(Protocol):
    """The decoded records of one indexed split."""

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int]) -> list[Record | Bad]:
        """Records at these places of the split, in this order; places may repeat."""
        ...


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
class StreamedFormat(Protocol):
    """A format whose records are found by reading."""

    name: str
    suffixes: tuple[str, ...]

    def cuttable(self, url: str) -> bool:
        """Whether shards with this name may be read from any byte on (uncompressed lines)."""
        ...

    def rows(self, source: Source, start: int, stop: int) -> Iterator[Row]:
        """The slots of the split [start, stop); (0, size) where not cuttable.

        For a cuttable format the records that *begin* in the range belong to it, so that neighbouring splits
        neither lose nor repeat one wherever the cut falls.

        Raises:
            CorruptError: What follows can't be decoded; slots before it have been yielded.
        """
        ...


Format: TypeAlias = IndexedFormat | StreamedFormat
