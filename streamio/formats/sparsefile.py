"""Read-only files for pyarrow of which only some ranges are in memory, or come in as they are needed.

What is not there is read from the source. Which ranges are worth fetching beforehand is decided by the format.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from streamio.formats.base import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

    from streamio.formats.base import Source

_AT_ONCE = 8 << 20  # bytes of short ranges that are read together before the first is needed


class Readable(Protocol):
    """The part of a `Source` that a sparse file needs."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    def read(self, start: int, stop: int) -> Buffer:
        """Exactly the bytes [start, stop)."""
        ...


def placed(data: Buffer, start: int) -> pa.Buffer | None:
    """A buffer of which the bytes from `start` on are these, as in the file that they come from, without a copy.

    What lies before is not there and must never be touched. In return pyarrow reads from it without the interpreter,
    for which a Python file would have to wait at each read while another thread runs.

    Args:
        data: Bytes of a file.
        start: Where they begin in it.

    Returns:
        The buffer; None where `data` lies at too low an address for it.
    """
    import pyarrow as pa

    here = pa.py_buffer(data)
    beginning = here.address - start
    return pa.foreign_buffer(beginning, start + here.size, base=here) if beginning > 0 and here.size else None


class SparseFile:
    """A file object as `pyarrow.PythonFile` takes it.

    Args:
        source: Where bytes come from that were not added.
    """

    closed = False

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._ranges: list[tuple[int, pa.Buffer]] = []
        self._position = 0

    def add(self, start: int, data: Buffer) -> None:
        """Have these bytes, which begin at `start`, at hand."""
        import pyarrow as pa

        self._ranges.append((start, pa.py_buffer(data)))

    def read_buffer(self, count: int) -> pa.Buffer:
        """The next `count` bytes, fewer at the end; without a copy where they were added."""
        import pyarrow as pa

        start = self._position
        stop = min(start + count, self._source.size)
        self._position = max(start, stop)
        for begin, buffer in self._ranges:
            if begin <= start and stop <= begin + buffer.size:
                return buffer.slice(start - begin, stop - start)
        return pa.py_buffer(self._missing(start, stop) if start < stop else b"")

    def read(self, count: int = -1) -> bytes:
        """The next `count` bytes; all that follow if it is negative."""
        count = self._source.size - self._position if count < 0 else count
        return bytes(self.read_buffer(count).to_pybytes())

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move, as `io.IOBase.seek` does."""
        self._position = offset + (0, self._position, self._source.size)[whence]
        return self._position

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """False."""
        return False

    def seekable(self) -> bool:
        """True."""
        return True

    def flush(self) -> None:
        """Do nothing: there is nothing to write."""

    def close(self) -> None:
        """Let go of what was added."""
        self._ranges.clear()
        self.closed = True

    def _missing(self, start: int, stop: int) -> Buffer:
        return self._source.read(start, stop)


class ChunkFile(SparseFile):
    """A sparse file of which some ranges come as streams, each read in order, all of them side by side.

    Short ranges are read at once instead, as far as some megabytes go. What is not asked for in order is read anew.

    Args:
        source: The shard.
        ranges: The ranges.
    """

    def __init__(self, source: Source, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(source)
        self._streams = []
        short, left = [], _AT_ONCE
        for start, stop in sorted(ranges, key=lambda bounds: bounds[1] - bounds[0]):
            left -= stop - start
            if start == stop:
                continue
            if left >= 0:
                short.append((start, stop))
            else:
                self._streams.append(_Chunk(source, start, stop))
        for (start, _), data in zip(short, source.read_many(short) if short else (), strict=True):
            self.add(start, data)

    def close(self) -> None:
        """End the streams, and let go of what was read."""
        for stream in self._streams:
            stream.close()
        super().close()

    def _missing(self, start: int, stop: int) -> Buffer:
        for stream in self._streams:
            if stream.position == start and stop <= stream.stop:
                return stream.take(stop - start)
        return super()._missing(start, stop)


class _Chunk:
    """One range of a shard as a stream that is read by counts of bytes."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.position = start
        self.stop = stop
        self._chunks: Iterator[Buffer] = source.stream(start, stop)
        self._rest = memoryview(b"")

    def take(self, count: int) -> Buffer:
        """The next bytes."""
        parts: list[memoryview] = []
        missing = count
        while missing:
            if not len(self._rest):
                self._rest = memoryview(next(self._chunks))
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        self.position += count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._rest = memoryview(b"")
        if isinstance(self._chunks, Generator):
            self._chunks.close()
