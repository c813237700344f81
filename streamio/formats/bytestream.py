"""A stream of chunks that is read by counts of bytes, for formats that are parsed in sequence.

Where the chunks come from, and what the bytes mean, is not its business.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamio.formats.base import Buffer, CorruptError


class ByteStream:
    """Reads a stream of chunks, cut anywhere; bytes are copied once at most, and only where `bytes` are returned.

    Args:
        chunks: The bytes in order.
        position: Where in the file the first of them stands.
    """

    __slots__ = ("_at", "_before", "_chunk", "_chunks")

    def __init__(self, chunks: Iterable[Buffer], position: int = 0) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")
        self._at = 0
        self._before = position  # where the chunk begins

    @property
    def position(self) -> int:
        """The place in the file of what is read next."""
        return self._before + self._at

    def rest(self) -> memoryview:
        """What is at hand without another chunk, at least one byte but at the end; it stays unread."""
        while self._at == len(self._chunk):
            self._before += len(self._chunk)
            self._chunk, self._at = memoryview(b""), 0  # lets go of the chunk before it waits for the next one
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._chunk = memoryview(chunk)
        return self._chunk[self._at :]

    def some(self, most: int) -> memoryview:
        """Between one and `most` bytes, all from one chunk; none only at the end."""
        part = self.rest()[:most]
        self._at += len(part)
        return part

    def up_to(self, count: int) -> bytes:
        """`count` bytes; fewer only at the end."""
        stop = self._at + count
        if stop <= len(self._chunk):
            part = self._chunk[self._at : stop]
            self._at = stop
            return bytes(part)
        parts = []
        while count and (part := self.some(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def exactly(self, count: int, what: str) -> bytes:
        """`count` bytes of the thing named `what`.

        Raises:
            CorruptError: The stream ends before.
        """
        part = self.up_to(count)
        if len(part) < count:
            raise CorruptError(f"{what} is cut short: the file ends", f"byte {self.position}")
        return part

    def skip(self, count: int, what: str) -> None:
        """Pass over `count` bytes, without holding them.

        Raises:
            CorruptError: The stream ends before.
        """
        if self._at + count <= len(self._chunk):
            self._at += count
            return
        while count:
            part = len(self.some(count))
            if not part:
                raise CorruptError(f"{what} is cut short: the file ends", f"byte {self.position}")
            count -= part

    def back(self, count: int) -> None:
        """Unread the last `count` bytes of what the last `some` returned."""
        self._at -= count
