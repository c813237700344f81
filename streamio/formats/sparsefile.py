"""A read-only file for pyarrow of which only some ranges are in memory.

What is not there is read from the source. Which ranges are worth fetching beforehand is decided by the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Readable(Protocol):
    """The part of a `Source` that a sparse file needs."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes [start, stop)."""
        ...


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

    def add(self, start: int, data: bytes) -> None:
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
        return pa.py_buffer(self._source.read(start, stop) if start < stop else b"")

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
