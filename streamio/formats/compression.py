"""Decompression of gzip, zstd, bzip2 and xz streams, chunk by chunk, in bounded memory.

A stream that is cut short, damaged or followed by foreign bytes is an error, never a silent end; what the
text inside means is the formats' business.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, cast

from streamio.formats.base import Buffer, CorruptError, Source
from streamio.formats.bytestream import ByteStream
from streamio.formats.names import Codec, codec_of
from streamio.iterators import ended

PIECE = 1 << 20
"""About the largest piece that is yielded, in bytes."""

_INPUT = 1 << 17
_MEMORY = 1 << 27  # 128 MiB, the most that `zstd -d` accepts unasked, and twice what `xz -9` needs
_XZ_MEMORY = _MEMORY + (1 << 20)  # a dictionary of that size, and what else the decoder holds
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_ZSTD_RUN = 8  # blocks, each of at most 128 KiB of text
_FRAME = "a zstd frame"


def uncompressed(source: Source, start: int = 0) -> Generator[Buffer, None, None]:
    """The whole shard as plain bytes, decompressed where its name says that it is compressed.

    Args:
        source: The shard. Its stream is closed when the generator is.
        start: First byte wanted of a shard that is not compressed; else 0.

    Yields:
        Chunks of any length.

    Raises:
        CorruptError: See `decompressed`.
    """
    codec = codec_of(source.url)
    with ended(source.stream(start)) as stream:
        if codec is None:
            yield from stream
        else:
            with closing(decompressed(stream, codec)) as pieces:
                yield from pieces


def decompressed(
    chunks: Iterable[Buffer], codec: Codec, begin: int = 0, note: Callable[[int], None] | None = None
) -> Generator[bytes, None, None]:
    """Decompress a stream.

    It may be several joined: gzip members, with zero bytes after any of them; zstd frames, skippable ones among
    them; bzip2 streams; xz streams, with zero bytes in fours after any of them. No bytes at all are empty text.

    Args:
        chunks: The compressed bytes, cut anywhere.
        codec: `"gz"`, `"zst"`, `"bz2"` or `"xz"`.
        begin: Where in the file the first of them stands.
        note: Told of each member, frame or stream, before its text comes: where in the file it begins.

    Returns:
        A generator of pieces of at most some `PIECE` bytes, none of them empty.

    Raises:
        CorruptError: The stream is cut short, damaged, of another kind, or asks for a window of more than 128
            MiB. What came before has been yielded. The position counts compressed bytes.
    """
    stream, tell = ByteStream(chunks, begin), note or (lambda _: None)
    return _unzstd(stream, tell) if codec == "zst" else _inflated(stream, _KINDS[codec](), tell)


class _Decompressor(Protocol):
    """One member or stream, as the standard library's and isal's classes read it."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: Buffer, max_length: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Kind:
    """What sets one codec apart.

    Attributes:
        name: For messages.
        unit: What several of are joined, for messages.
        magic: How each unit begins.
        start: Makes a decompressor of one unit; it checks lengths and checksums.
        damaged: What that raises where data are damaged.
        padding: Zero bytes may stand after a unit, in multiples of this; 0: none.
    """

    name: str
    unit: str
    magic: bytes
    start: Callable[[], _Decompressor]
    damaged: type[Exception]
    padding: int


def _gzip() -> _Kind:
    from isal import igzip_lib

    def start() -> _Decompressor:
        return cast(_Decompressor, igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP))

    damaged = cast("type[Exception]", igzip_lib.error)  # isal's stubs take it for an instance
    return _Kind("gzip", "gzip member", b"\x1f\x8b", start, damaged, 1)


def _bzip2() -> _Kind:
    import bz2

    return _Kind("bzip2", "bzip2 stream", b"BZh", bz2.BZ2Decompressor, OSError, 0)


def _xz() -> _Kind:
    import lzma

    def start() -> _Decompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    return _Kind("xz", "xz stream", b"\xfd7zXZ\0", start, lzma.LZMAError, 4)


_KINDS: dict[Codec, Callable[[], _Kind]] = {"gz": _gzip, "bz2": _bzip2, "xz": _xz}


def _inflated(stream: ByteStream, kind: _Kind, note: Callable[[int], None]) -> Generator[bytes, None, None]:
    while data := _start(stream, kind):
        note(stream.position - len(data))
        decompressor = kind.start()
        while not decompressor.eof:
            if not data and decompressor.needs_input and not (data := stream.some(_INPUT)):
                raise CorruptError(f"the {kind.unit} is cut short: the file ends", f"byte {stream.position}")
            try:
                piece = decompressor.decompress(data, PIECE)
            except kind.damaged as error:
                raise CorruptError(_reason(kind, error), f"byte {stream.position}") from error
            data = b""
            if piece:
                yield piece
        stream.back(len(decompressor.unused_data))


def _start(stream: ByteStream, kind: _Kind) -> Buffer:
    """The first bytes of the next unit, with the padding before it skipped; none at the end."""
    first = stream.position
    zeros = _skip_zeros(stream) if first and kind.padding else 0
    if zeros and zeros % kind.padding:
        raise CorruptError(f"the padding of the {kind.name} data is damaged", f"byte {stream.position}")
    at = stream.position
    data: Buffer = stream.some(_INPUT)
    if 0 < len(data) < len(kind.magic):
        data = bytes(data) + stream.up_to(len(kind.magic) - len(data))  # no unit is so short as to end in these
    if data and data[: len(kind.magic)] != kind.magic:
        what = f"foreign bytes follow the last {kind.unit}" if first else f"this is no {kind.name} file"
        raise CorruptError(what, f"byte {at}")
    return data


def _skip_zeros(stream: ByteStream) -> int:
    """Pass over zeros; how many there were."""
    count = 0
    while data := stream.some(_INPUT):
        rest = len(bytes(data).lstrip(b"\0"))
        count += len(data) - rest
        if rest:
            stream.back(rest)
            break
    return count


def _reason(kind: _Kind, error: Exception) -> str:
    if "Memory usage limit" in str(error):  # xz's own words do not say how much
        return f"{kind.name} data want more than {_MEMORY >> 20} MiB of memory: compress them with `xz -9` at most"
    return f"{kind.name} data are damaged: {error}"


def _unzstd(stream: ByteStream, note: Callable[[int], None]) -> Generator[bytes, None, None]:
    """Decompress a few blocks at a time.

    A block holds at most 128 KiB of text, so output is bounded whatever the data claim; and where a frame
    ends is known exactly, which the library's own readers of several frames do not tell.
    """
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_MEMORY)
    try:
        while _zstd_frame_follows(stream):
            note(stream.position - 4)  # behind its magic number
            frame = decompressor.decompressobj()
            for part in _zstd_parts(stream):
                if piece := frame.decompress(part):
                    yield piece
    except zstandard.ZstdError as error:
        raise CorruptError(f"zstd data are damaged: {error}", f"byte {stream.position}") from error


def _zstd_frame_follows(stream: ByteStream) -> bool:
    """Read the magic number of the next frame, skippable ones passed over; False at the end."""
    while magic := stream.up_to(4):
        number = int.from_bytes(magic, "little") if len(magic) == 4 else 0
        if number == _ZSTD_MAGIC:
            return True
        if number not in _ZSTD_SKIPPABLE:
            where = stream.position - len(magic)
            what = "foreign bytes follow the last zstd frame" if where else "this is no zstd file"
            raise CorruptError(what, f"byte {where}")
        stream.skip(int.from_bytes(stream.exactly(4, _FRAME), "little"), _FRAME)
    return False


def _zstd_parts(stream: ByteStream) -> Iterator[Buffer]:
    """The parts of a frame (RFC 8878, 3.1.1): its header, then runs of whole blocks, the last with the checksum."""
    descriptor = stream.exactly(1, _FRAME)
    flags = descriptor[0]
    single_segment = bool(flags & 0x20)
    content_size = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
    dictionary_id = (0, 1, 2, 4)[flags & 3]
    window = 0 if single_segment else 1
    header = stream.exactly(window + dictionary_id + content_size, _FRAME)
    yield _ZSTD_MAGIC.to_bytes(4, "little") + descriptor + header
    checksum = 4 if flags & 4 else 0
    last = False
    while not last:
        end, last = _zstd_run(stream.rest(), checksum)
        if end:
            yield stream.some(end)
        else:  # a block that goes over the end of a chunk
            head = stream.exactly(3, _FRAME)
            length, last = _zstd_block(head, checksum)
            yield head + stream.exactly(length, _FRAME)


def _zstd_run(data: memoryview, checksum: int) -> tuple[int, bool]:
    """Where the last whole block ends that may be decompressed at once, and whether it is the last of its frame."""
    end, last = 0, False
    for _ in range(_ZSTD_RUN):
        if last or end + 3 > len(data):
            break
        length, ends = _zstd_block(data[end : end + 3], checksum)
        if end + 3 + length > len(data):
            break
        end, last = end + 3 + length, ends
    return end, last


def _zstd_block(head: Buffer, checksum: int) -> tuple[int, bool]:
    """Bytes that follow a block's header, and whether it is the last one."""
    bits = int.from_bytes(head, "little")
    last = bool(bits & 1)
    length = 1 if bits >> 1 & 3 == 1 else bits >> 3  # type 1 is one byte, repeated
    return length + (checksum if last else 0), last
