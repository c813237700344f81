from __future__ import annotations

import pytest

from streamio.formats.base import CorruptError
from streamio.formats.names import codec_of
from streamio.formats.unpacked import Cut, Unpacked, plain_name
from tests.formats.memory_source import MemorySource
from tests.index.shards import packed

TEXT = bytes(range(256)) * 400
SUFFIXES = [".gz", ".zst", ".bz2", ".xz"]


def units(suffix: str) -> tuple[MemorySource, list[tuple[int, int]]]:
    source = MemorySource(packed(TEXT, suffix, [1000, 50_000, 50_001]), f"s3://b/x.txt{suffix}", chunk=300)
    noted: list[tuple[int, int]] = []
    view = Unpacked(source, codec_of(source.url) or "gz", noted=lambda byte, text: noted.append((byte, text)))
    assert b"".join(view.stream()) == TEXT
    return source, noted


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_units_are_noted_with_their_places_in_the_text(suffix: str) -> None:
    source, noted = units(suffix)
    assert [text for _, text in noted] == [0, 1000, 50_000, 50_001]
    assert noted[0] == (0, 0)
    for byte, text in noted:
        view = Unpacked(source, codec_of(source.url) or "gz", byte, text)
        assert b"".join(view.stream(text + 5)) == TEXT[text + 5 :]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_reading_goes_forward_and_says_where_it_can_not_go(suffix: str) -> None:
    source, _ = units(suffix)
    view = Unpacked(source, codec_of(source.url) or "gz")
    assert view.read(10, 20) == TEXT[10:20]
    assert view.read_many([(20, 22), (60_000, 60_001)]) == [TEXT[20:22], TEXT[60_000:60_001]]
    with pytest.raises(ValueError, match="byte 60001"):
        view.read(0, 1)
    with pytest.raises(CorruptError, match="cut short"):
        view.read(len(TEXT) - 1, len(TEXT) + 1)
    view.close()
    assert source.open_streams == 0


def test_little_is_read_behind_the_stop() -> None:
    data = packed(TEXT * 100, ".zst", range(0, 100 * len(TEXT), len(TEXT)))
    source = MemorySource(bytes(8) + data + bytes(1 << 20), "s3://b/x.txt.zst")
    view = Unpacked(source, "zst", 8, 0, 8 + 100)
    view.read(0, 1000)
    view.close()
    assert source.reads == []


def test_damage_tells_its_place_in_the_shard() -> None:
    source, noted = units(".zst")
    torn = MemorySource(bytes(source.data[:-3]), source.url)
    places = []
    for byte, text in (noted[0], noted[2]):
        with pytest.raises(CorruptError, match="cut short") as caught:
            list(Unpacked(torn, "zst", byte, text).stream(text))
        places.append(caught.value.position)
    assert places == [f"byte {torn.size}"] * 2


def test_a_cut_source_ends_with_its_tail() -> None:
    source = MemorySource(b"0123456789", "s3://b/x")
    cut = Cut(source, 6, b"ab")
    assert (cut.url, cut.size) == ("s3://b/x", 8)
    assert b"".join(bytes(chunk) for chunk in cut.stream(2)) == b"2345ab"
    assert b"".join(bytes(chunk) for chunk in cut.stream(1, 3)) == b"12"
    assert b"".join(bytes(chunk) for chunk in cut.stream(7)) == b"b"
    assert cut.read_many([(0, 1), (5, 7), (6, 8)]) == [b"0", b"5a", b"ab"]


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("s3://b/x.jsonl.zst", "s3://b/x.jsonl"),
        ("s3://b/x.y/part-0.GZ", "s3://b/x.y/part-0"),
        ("s3://b/x.tgz", "s3://b/x.tar"),
        ("https://h/x.jsonl.gz?sig=a.b", "https://h/x.jsonl?sig=a.b"),
        ("zip://a/x.txt.xz::s3://b/c.zip", "zip://a/x.txt::s3://b/c.zip"),
        ("filecache::s3://b/x.txt.bz2", "filecache::s3://b/x.txt"),
    ],
)
def test_the_name_loses_what_tells_the_codec(url: str, plain: str) -> None:
    assert codec_of(url) is not None
    assert plain_name(url) == plain
    assert codec_of(plain) is None
