"""Decompression of gzip and zstd streams, chunk by chunk, in bounded memory.

A stream that is cut short, damaged or followed by foreign bytes is an error, never a silent end; what the
text inside means is the formats' business.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import cast

from streamio.formats.base import CorruptError, Source
from streamio.formats.bytestream import ByteStream
from streamio.formats.names import Codec, codec_of

PIECE = 1 << 20
"""About the largest piece that is yielded, in bytes."""

_GZIP_INPUT = 1 << 17
_ZSTD_WINDOW = 1 << 27  # 128 MiB, the most that `zstd -d` accepts unasked
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_FRAME = "a zstd frame"


def uncompressed(source: Source) -> Generator[bytes, None, None]:
    """The whole shard as plain bytes, decompressed where its name says that it is compressed.

    Args:
        source: The shard. Its stream is closed when the generator is.

    Yields:
        Chunks of any length.

    Raises:
        CorruptError: See `decompressed`.
    """
    codec = codec_of(source.url)
    stream = source.stream()
    try:
        if codec is None:
            yield from stream
        else:
            with closing(decompressed(stream, codec)) as pieces:
                yield from pieces
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def decompressed(chunks: Iterable[bytes], codec: Codec) -> Generator[bytes, None, None]:
    """Decompress a stream.

    Gzip may have several members, with zero bytes after any of them; zstd may have several frames, skippable
    ones among them. A stream of no bytes at all is empty text.

    Args:
        chunks: The compressed bytes, cut anywhere.
        codec: `"gz"` or `"zst"`.

    Returns:
        A generator of pieces of at most some `PIECE` bytes, none of them empty.

    Raises:
        CorruptError: The stream is cut short, damaged, of another kind, or asks for a window of more than 128
            MiB. What came before has been yielded. The position counts compressed bytes.
    """
    stream = ByteStream(chunks)
    return _gunzip(stream) if codec == "gz" else _unzstd(stream)


def _gunzip(stream: ByteStream) -> Generator[bytes, None, None]:
    from isal import igzip_lib

    damaged = cast("type[Exception]", igzip_lib.error)  # isal's stubs take it for an instance
    while data := _gzip_start(stream):
        # checks the length and CRC of each member at its end
        decompressor = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not decompressor.eof:
            if not data and decompressor.needs_input and not (data := stream.some(_GZIP_INPUT)):
                raise CorruptError("a gzip member is cut short: the file ends", f"byte {stream.position}")
            try:
                piece = decompressor.decompress(data, PIECE)
            except damaged as error:
                message = f"gzip data is damaged: {error}"
                raise CorruptError(message, f"byte {stream.position}") from error
            data = b""
            if piece:
                yield piece
        stream.back(len(decompressor.unused_data))


def _gzip_start(stream: ByteStream) -> bytes:
    """The first bytes of the next member, with the zeros before it skipped; none at the end."""
    while data := stream.some(_GZIP_INPUT):
        first = stream.position == len(data)
        start = data if first else data.lstrip(b"\0")
        if not start:
            continue
        if len(start) == 1:
            start += stream.some(1)
        if start[:2] != b"\x1f\x8b":
            what = "this is no gzip file" if first else "foreign bytes follow the last gzip member"
            raise CorruptError(what, f"byte {stream.position - len(start)}")
        return start
    return b""


def _unzstd(stream: ByteStream) -> Generator[bytes, None, None]:
    """Decompress block by block.

    A block holds at most 128 KiB of text, so output is bounded whatever the data claim; and where a frame
    ends is known exactly, which the library's own readers of several frames do not tell.
    """
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    pieces: list[bytes] = []
    size = 0
    try:
        while _zstd_frame_follows(stream):
            frame = decompressor.decompressobj()
            for part in _zstd_parts(stream):
                pieces.append(frame.decompress(part))
                size += len(pieces[-1])
                if size >= PIECE:
                    yield b"".join(pieces)
                    pieces, size = [], 0
    except (zstandard.ZstdError, CorruptError) as error:
        if size:
            yield b"".join(pieces)  # what came before the damage is good
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"zstd data is damaged: {error}", f"byte {stream.position}") from error
    if size:
        yield b"".join(pieces)


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


def _zstd_parts(stream: ByteStream) -> Iterator[bytes]:
    """The parts of a frame (RFC 8878, 3.1.1): its header, then each block, the last with the checksum."""
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
        head = stream.exactly(3, _FRAME)
        bits = int.from_bytes(head, "little")
        last = bool(bits & 1)
        length = 1 if bits >> 1 & 3 == 1 else bits >> 3  # type 1 is one byte, repeated
        yield head + stream.exactly(length + (checksum if last else 0), _FRAME)
