"""The text of a compressed shard as a source of its own, read from any frame, member or stream on.

So formats read compressed text as they read plain text. Where the units begin is noted on the way; what the text means
is the formats' business.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from streamio.formats.base import PAST_THE_END, Buffer, Source
from streamio.formats.bytestream import ByteStream
from streamio.formats.compression import PIECE, decompressed
from streamio.formats.names import Codec
from streamio.iterators import ended

#: Stands for the length of a text that has not been read yet; another number than `linewise` has for that.
ENDLESS = 1 << 61

_LONGEST_STEP = 1 << 23


class Unpacked:
    """The text of a compressed shard; a `Source` that is read forwards, each byte once.

    Its URL has no codec's suffix. Streams end where the text does, and then tell what is wrong with the end.

    Args:
        source: The compressed shard.
        codec: How it is compressed.
        begin: The byte of the shard that reading begins with: 0, or where a unit begins.
        offset: Where in the text that unit begins.
        stop: The byte up to which the shard is read at first; a little more is read as it is asked for.
        noted: Told of each unit before its text comes: the byte of the shard, and where in the text it begins.
    """

    size = ENDLESS

    def __init__(
        self,
        source: Source,
        codec: Codec,
        begin: int = 0,
        offset: int = 0,
        stop: int | None = None,
        noted: Callable[[int, int], None] | None = None,
    ) -> None:
        self.url = plain_name(source.url)
        self._noted = noted
        self._told = offset
        self._chunks = _near(source, begin, source.size if stop is None else stop)
        self._pieces = self._counted(decompressed(self._chunks, codec, begin, self._note))
        self._text = ByteStream(self._pieces, offset)

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes [start, stop) of the text, which follow on what was read before.

        Raises:
            CorruptError: The text ends before.
        """
        self._go_to(start)
        return self._text.exactly(stop - start, "the text")

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Several ranges, in rising order."""
        return [self.read(start, stop) for start, stop in ranges]

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[Buffer]:
        """The text from `start` on, which follows on what was read before."""
        self._go_to(start)
        stop = ENDLESS if stop is None else stop
        while self._text.position < stop and (part := self._text.some(min(PIECE, stop - self._text.position))):
            yield part

    def close(self) -> None:
        """End the reads in flight."""
        self._pieces.close()
        self._chunks.close()

    def _go_to(self, start: int) -> None:
        if start < self._text.position:
            raise ValueError(f"the text was read up to byte {self._text.position}, and byte {start} is wanted")
        self._text.skip(start - self._text.position, "the text")

    def _note(self, byte: int) -> None:
        if self._noted is not None:
            self._noted(byte, self._told)

    def _counted(self, pieces: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
        with ended(pieces):
            for piece in pieces:
                self._told += len(piece)
                yield piece


class Cut:
    """The beginning of a source, with an end of its own behind it.

    Args:
        source: The source.
        stop: How many of its bytes are left.
        tail: What follows them.
    """

    def __init__(self, source: Source, stop: int, tail: bytes) -> None:
        self.url = source.url
        self.size = stop + len(tail)
        self._source = source
        self._stop = stop
        self._tail = tail

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes [start, stop)."""
        inside = bytes(self._source.read(start, min(stop, self._stop))) if start < self._stop else b""
        return inside + self._tail[max(0, start - self._stop) : max(0, stop - self._stop)]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Several ranges, in the order asked for."""
        return [self.read(start, stop) for start, stop in ranges]

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[Buffer]:
        """The bytes [start, stop) in order."""
        stop = self.size if stop is None else stop
        if start < self._stop:
            with ended(self._source.stream(start, min(stop, self._stop))) as chunks:
                yield from chunks
        tail = self._tail[max(0, start - self._stop) : max(0, stop - self._stop)]
        if tail:
            yield tail


def plain_name(url: str) -> str:
    """The URL of a compressed shard without the codec's suffix, by which formats take it for plain text.

    It names nothing that could be opened: `.tgz` and the like become `.tar`.
    """
    link, chained, rest = url.partition("::")
    if chained and "://" not in link:  # a cache before a store, or an archive as a whole
        return f"{link}::{plain_name(rest)}"
    query = min((at for at in (link.find("?"), link.find("#")) if at >= 0), default=len(link))
    if not link[:8].lower().startswith(("http://", "https://")):
        query = len(link)
    stem, dot, suffix = link[:query].rpartition(".")
    ending = ".tar" if suffix.lower().startswith("t") else ""
    return f"{stem if dot else link[:query]}{ending}{link[query:]}{chained}{rest}"


def first_read(begin: int, stop: int, size: int) -> tuple[int, int]:
    """The bytes of a shard that are asked for at once to read text which is packed in [begin, stop)."""
    return begin, min(size, stop + PAST_THE_END)


def _near(source: Source, begin: int, stop: int) -> Generator[Buffer, None, None]:
    """The bytes from `begin` on: a stream to a little past `stop`, then ever larger reads as asked for."""
    begin, position = first_read(begin, stop, source.size)
    with ended(source.stream(begin, position)) as stream:
        yield from stream
    step = PAST_THE_END
    while position < source.size:
        following = min(source.size, position + step)
        yield source.read(position, following)
        position = following
        step = min(2 * step, _LONGEST_STEP)
