"""A file for pyarrow over bytes that can only be pulled in order, as from a decompressor.

An error of the stream is kept for the consumer, who asks for it; pyarrow sees an end.
"""

from __future__ import annotations

from collections.abc import Generator
from threading import Lock

from streamio.formats.base import Buffer


class PullFile:
    """A file object as `pyarrow.PythonFile` takes it; pyarrow may read from a thread of its own.

    Args:
        chunks: The bytes, in chunks of any length. Closed with the file.

    Attributes:
        error: What the stream failed with; None so far.
    """

    closed = False

    def __init__(self, chunks: Generator[Buffer, None, None]) -> None:
        self.error: Exception | None = None
        self._chunks = chunks
        self._lock = Lock()
        self._rest = memoryview(b"")

    def peek(self, count: int) -> bytes:
        """The next `count` bytes, fewer only at the end, which the next read gives again."""
        head = self.read(count)
        with self._lock:
            self._rest = memoryview(head + bytes(self._rest))
        return head

    def read(self, count: int = -1) -> bytes:
        """The next `count` bytes, fewer only at the end; all that follow if it is negative."""
        parts: list[memoryview] = []
        missing = count
        with self._lock:  # so that nobody closes the stream meanwhile
            while missing and (len(self._rest) or self._pull()):
                part = self._rest[:missing] if missing > 0 else self._rest
                self._rest = self._rest[len(part) :]
                parts.append(part)
                missing -= len(part) if missing > 0 else 0
        return b"".join(parts)

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """False."""
        return False

    def seekable(self) -> bool:
        """False."""
        return False

    def flush(self) -> None:
        """Do nothing: there is nothing to write."""

    def close(self) -> None:
        """End the stream. May be called again."""
        with self._lock:
            self._rest = memoryview(b"")
            self._chunks.close()
            self.closed = True

    def _pull(self) -> bool:
        """Get the next chunk that is not empty, if there is one."""
        try:
            for chunk in self._chunks:
                if len(chunk):
                    self._rest = memoryview(chunk)
                    return True
        except Exception as error:  # noqa: BLE001 - raised by the consumer: pyarrow would keep it, and its frames, for ever
            self.error = error
        return False
