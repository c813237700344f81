"""A stream of chunks that is read by counts of bytes, for formats that are parsed in sequence.

Where the chunks come from, and what the bytes mean, is not its business.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamio.formats.base import CorruptError

_SKIP = 1 << 20


class ByteStream:
    """Reads a stream of chunks, cut anywhere, without joining more of them than a read spans.

    Args:
        chunks: The bytes in order.

    Attributes:
        position: Bytes read so far.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = b""
        self._at = 0
        self.position = 0

    def some(self, most: int) -> bytes:
        """Between one and `most` bytes, all from one chunk; none only at the end."""
        while self._at == len(self._chunk):
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._chunk, self._at = chunk, 0
        part = self._chunk[self._at : self._at + most]
        self._at += len(part)
        self.position += len(part)
        return part

    def up_to(self, count: int) -> bytes:
        """`count` bytes; fewer only at the end."""
        part = self.some(count)
        if len(part) == count or not part:
            return part
        parts = [part]
        missing = count - len(part)
        while missing and (part := self.some(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def exactly(self, count: int, what: str) -> bytes:
        """`count` bytes of the thing named `what`.

        Raises:
            CorruptError: The stream ends before.
        """
        part = self.up_to(count) if count else b""
        if len(part) < count:
            raise CorruptError(f"{what} is cut short: the file ends", f"byte {self.position}")
        return part

    def skip(self, count: int, what: str) -> None:
        """Pass over `count` bytes, without holding them.

        Raises:
            CorruptError: The stream ends before.
        """
        while count:
            count -= len(self.exactly(min(count, _SKIP), what))

    def back(self, count: int) -> None:
        """Unread the last `count` bytes of what the last `some` returned."""
        self._at -= count
        self.position -= count
