"""Compressed streams of every codec: however they are cut, either the whole text comes out or an error does."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamio.formats.base import CorruptError
from streamio.formats.compression import PIECE, decompressed, uncompressed
from tests.formats.memory_source import MemorySource

SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
TEXT = b"".join(b'{"n": %d, "r": "%x"}\n' % (n, random.Random(n).getrandbits(80)) for n in range(60_000))


CODECS = ["gz", "zst", "bz2", "xz"]


def compress(data: bytes, codec: str, level: int = 1) -> bytes:
    if codec == "gz":
        return gzip.compress(data, level)
    if codec == "bz2":
        return bz2.compress(data, level)
    if codec == "xz":
        return lzma.compress(data, preset=level)
    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(data)


def chunked(data: bytes, length: int) -> list[bytes]:
    return [data[start : start + length] for start in range(0, len(data), length)]


@pytest.mark.parametrize("codec", CODECS)
@given(
    parts=st.lists(st.binary(max_size=3000), max_size=4),
    chunk=st.integers(1, 700),
    repeat=st.sampled_from([1, 200]),
)
def test_members_and_frames_cut_anywhere_come_out_whole(codec, parts, chunk, repeat):
    parts = [part * repeat for part in parts]
    data = b"".join(compress(part, codec) for part in parts)
    assert b"".join(decompressed(chunked(data, chunk), codec)) == b"".join(parts)


@pytest.mark.parametrize("codec", CODECS)
@given(place=st.integers(1, 10_000), chunk=st.integers(1, 4000))
def test_a_stream_cut_short_anywhere_is_an_error_after_what_came_before(codec, place, chunk):
    data = compress(TEXT[:30_000], codec) + compress(TEXT[30_000:60_000], codec)
    ends = {len(compress(TEXT[:30_000], codec)), len(data)}
    data = data[: place % len(data)]
    if not data or len(data) in ends:
        return
    got = []
    with pytest.raises(CorruptError, match=r"cut short|foreign bytes|this is no|padding"):
        got.extend(decompressed(chunked(data, chunk), codec))
    assert TEXT.startswith(b"".join(got))


@pytest.mark.parametrize("codec", CODECS)
@given(place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_flipped_bit_never_gives_other_text_without_an_error(codec, place, bit):
    data = bytearray(compress(TEXT[:20_000], codec))
    data[place % len(data)] ^= 1 << bit
    try:
        text = b"".join(decompressed([bytes(data)], codec))
    except CorruptError:
        return
    assert text == TEXT[:20_000]  # a bit that does not count: a time stamp or flag in the header


def test_zeros_after_a_gzip_member_are_padding():
    data = compress(b"one", "gz") + bytes(700) + compress(b"two", "gz") + bytes(3)
    for chunk in (1, 5, 10_000):
        assert b"".join(decompressed(chunked(data, chunk), "gz")) == b"onetwo"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("garbage", [b"x", b"garbage", b"\x1f", b"\x00\x00rest"])
def test_foreign_bytes_after_the_end_are_an_error(codec, garbage):
    data = compress(b"text", codec)
    got = []
    with pytest.raises(CorruptError, match=r"foreign bytes|padding"):
        got.extend(decompressed([data + garbage], codec))
    assert b"".join(got) == b"text"


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_of_another_kind_is_named_as_such(codec):
    with pytest.raises(CorruptError, match=r"this is no (gzip|zstd|bzip2|xz) file") as caught:
        list(decompressed([b'{"a": 1}\n'], codec))
    assert caught.value.position == "byte 0"


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_file_is_empty_text(codec):
    assert list(decompressed([], codec)) == []
    assert list(decompressed([b""], codec)) == []


def test_skippable_zstd_frames_are_passed_over():
    data = SKIPPABLE + compress(b"one", "zst") + SKIPPABLE + SKIPPABLE + compress(b"two", "zst") + SKIPPABLE
    for chunk in (1, 7, 10_000):
        assert b"".join(decompressed(chunked(data, chunk), "zst")) == b"onetwo"


def test_a_skippable_zstd_frame_cut_short_is_an_error():
    with pytest.raises(CorruptError, match="cut short"):
        list(decompressed([compress(b"one", "zst") + SKIPPABLE[:-1]], "zst"))


@pytest.mark.parametrize("level", [-5, 3, 19])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_every_kind_of_zstd_frame_is_read(level, sized, checksum):
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=sized, threads=0)
    for text in (b"", b"a", bytes(300_000), os.urandom(200_000), TEXT[:100_000]):
        stream = compressor.compressobj(size=len(text) if sized else -1)
        data = stream.compress(text) + stream.flush()
        assert b"".join(decompressed(chunked(data, 1000), "zst")) == text


def test_a_zstd_frame_that_wants_a_huge_window_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = stream.compress(b"text") + stream.flush()
    with pytest.raises(CorruptError, match="memory"):
        list(decompressed([data], "zst"))


def test_zeros_in_fours_after_an_xz_stream_are_padding_and_others_are_damage():
    data = compress(b"one", "xz") + bytes(700) + compress(b"two", "xz") + bytes(4)
    for chunk in (1, 5, 10_000):
        assert b"".join(decompressed(chunked(data, chunk), "xz")) == b"onetwo"
        with pytest.raises(CorruptError, match="the padding of the xz data is damaged"):
            list(decompressed(chunked(data + b"\0", chunk), "xz"))
    with pytest.raises(CorruptError, match="this is no xz file"):
        list(decompressed([bytes(4) + data], "xz"))


def test_zeros_after_a_bzip2_stream_are_foreign_bytes():
    with pytest.raises(CorruptError, match="foreign bytes follow the last bzip2 stream"):
        list(decompressed([compress(b"one", "bz2") + bytes(10)], "bz2"))


@pytest.mark.parametrize("check", [lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256])
def test_xz_with_every_check_is_read(check):
    assert b"".join(decompressed([lzma.compress(TEXT[:5000], check=check)], "xz")) == TEXT[:5000]


@pytest.mark.parametrize(("dictionary", "read"), [(1 << 26, True), (1 << 27, True), (1 << 28, False)])
def test_an_xz_stream_that_wants_much_memory_is_refused_with_the_limit(dictionary, read):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}]
    header = lzma.compress(b"text", filters=filters)
    data = _with_dictionary(header, dictionary)
    if read:
        assert b"".join(decompressed([data], "xz")) == b"text"
        return
    with pytest.raises(CorruptError, match=r"want more than 128 MiB of memory: compress them with `xz -9` at most"):
        list(decompressed([data], "xz"))


def _with_dictionary(data: bytes, size: int) -> bytes:
    """The same xz stream with another dictionary size in its block header, which needs no memory to make."""
    length = 4 * (data[12] + 1)
    block = bytearray(data[12 : 12 + length - 4])
    block[4] = 2 * (size.bit_length() - 1 - 12)  # 2 ** 12 is 0, each two more are the next power
    return data[:12] + bytes(block) + zlib.crc32(block).to_bytes(4, "little") + data[12 + length :]


@pytest.mark.parametrize("codec", CODECS)
def test_memoryviews_are_taken_as_bytes_are(codec):
    data = compress(TEXT, codec)
    views = [memoryview(chunk) for chunk in chunked(data, 777)]
    assert b"".join(decompressed(views, codec)) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_comes_out_in_small_pieces(codec):
    size = 1 << 26 if codec == "bz2" else 1 << 28  # the slowest
    bomb = compress(bytes(size), codec)
    tracemalloc.start()
    try:
        total = 0
        for piece in decompressed([bomb], codec):
            assert 0 < len(piece) <= 2 * PIECE
            total += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == size
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.jsonl", None),
        ("a.tar.GZ", "gz"),
        ("a.tgz", "gz"),
        ("a.zst", "zst"),
        ("a.txt.bz2", "bz2"),
        ("a.TBZ2", "bz2"),
        ("a.xz", "xz"),
        ("a.txz", "xz"),
    ],
)
def test_the_name_tells_the_compression_and_the_stream_is_closed(name, codec):
    source = MemorySource(compress(TEXT, codec) if codec else TEXT, f"memory://{name}", chunk=999)
    chunks = uncompressed(source)
    first = next(chunks)
    assert source.open_streams == 1
    assert bytes(first) + b"".join(chunks) == TEXT
    chunks = uncompressed(source)
    next(chunks)
    chunks.close()
    assert source.open_streams == 0
