"""Members of tar archives, held against `tarfile`: what is read is what it reads, or an error is told."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamio.formats.base import CorruptError
from streamio.formats.bytestream import ByteStream
from streamio.formats.tarmembers import members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}

names = st.one_of(
    st.text("ab./ ", min_size=1, max_size=20),
    st.text("xyä☃𝄞.", min_size=1, max_size=40),
    st.integers(90, 260).map(lambda length: ("folder/" * 40)[:length] + ".bin"),
)
infos = st.builds(
    lambda name, data, mode, mtime, number: (name, data, mode, mtime, number),
    names,
    st.one_of(st.binary(max_size=40), st.integers(0, 3000).map(lambda size: bytes([size % 251]) * size)),
    st.sampled_from([0o644, 0o100755, 0]),
    st.sampled_from([0, 1_700_000_000, 1_700_000_000.25, 2**40]),  # the third makes PAX headers, the last base-256
    st.sampled_from([0, 1000, 2**22]),
)
archives = st.builds(
    lambda parts: b"".join(archive(*part) for part in parts),
    st.lists(st.tuples(st.lists(infos, max_size=4), st.sampled_from(sorted(FORMATS))), min_size=1, max_size=2),
)


def archive(wanted, kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[kind]) as tar:
        for name, data, mode, mtime, number in wanted:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime, info.uid, info.uname = len(data), mode, mtime, number, "user"
            try:
                tar.addfile(info, io.BytesIO(data))
            except ValueError:  # more than ustar can say
                assert kind == "ustar"
    return buffer.getvalue()


def ours(data, chunk=1 << 20):
    """Path and data of each file, and the error that ended them, if any."""
    found = []
    try:
        chunks = (memoryview(data)[start : start + chunk] for start in range(0, len(data), chunk))
        found.extend((member.path, member.data) for member in members(ByteStream(chunks)) if not member.problem)
    except CorruptError as error:
        return found, error
    return found, None


def theirs(data):
    """The same by the standard library, zeros passed over and damage ending it in silence."""
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as tar:
            for info in tar:
                if info.isreg() and not info.issparse():
                    found.append((info.name, tar.extractfile(info).read()))
    except (tarfile.TarError, ValueError):
        pass
    return found


@given(data=archives, chunk=st.integers(1, 4000))
def test_archives_of_every_kind_are_read_as_tarfile_reads_them(data, chunk):
    found, error = ours(data, chunk)
    assert error is None
    assert found == theirs(data)


@given(data=archives, cut=st.integers(0, 1 << 20), chunk=st.integers(1, 4000))
def test_what_is_read_of_an_archive_cut_anywhere_is_what_tarfile_reads(data, cut, chunk):
    data = data[: cut % len(data)]
    found, error = ours(data, chunk)
    expected = theirs(data)
    assert found == (expected if error is None else expected[: len(found)])


@given(data=archives, flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), min_size=1, max_size=3))
def test_flipped_bits_give_what_tarfile_gives_or_an_error(data, flips):
    damaged = bytearray(data)
    for place, bit in flips:
        damaged[place % len(damaged)] ^= 1 << bit
    found, error = ours(bytes(damaged))
    expected = theirs(bytes(damaged))
    assert found == (expected if error is None else expected[: len(found)])


@given(
    wanted=st.lists(infos, min_size=1, max_size=3),
    kind=st.sampled_from(sorted(FORMATS)),
    which=st.integers(0, 9),
    place=st.integers(0, 511).filter(lambda place: not 148 <= place < 157),
    value=st.sampled_from(b"\0 078-+_x/.\x80\xff"),
)
def test_headers_of_strange_content_are_taken_as_tarfile_takes_them(wanted, kind, which, place, value):
    data = bytearray(archive(wanted, kind))
    with tarfile.open(fileobj=io.BytesIO(bytes(data))) as tar:
        starts = [info.offset_data - 512 for info in tar]
    assume(starts)
    start = starts[which % len(starts)]
    data[start + place] = value
    header = data[start : start + 512]
    header[148:156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(header)
    found, error = ours(bytes(data))
    expected = theirs(bytes(data))
    assert found == (expected if error is None else expected[: len(found)])


@pytest.mark.parametrize("mode", [b"000644 \0", b"0000644\0", b"   644 \0", bytes(8)])
def test_numbers_are_read_in_the_ways_that_programs_write_them(mode):
    data = bytearray(archive([("a.txt", b"x" * 700, 0o644, 0, 0)], "ustar"))
    data[100:108] = mode
    data[124:136] = b"00000001274 "  # a space instead of a NUL, as BSD writes it
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    assert ours(bytes(data)) == ([("a.txt", b"x" * 700)], None) == (theirs(bytes(data)), None)


def test_of_several_headers_for_one_member_the_first_holds_as_in_tarfile():
    parts = []
    for name in ("first.txt", "second.txt", "third.txt"):
        info = tarfile.TarInfo("header")
        info.size, info.pax_headers = 1, {"path": name}
        parts.append(info.tobuf(tarfile.PAX_FORMAT)[:1024])
    data = b"".join(parts) + archive([("a.txt", b"1", 0, 0, 0)], "ustar")
    assert ours(data)[0] == theirs(data) == [("first.txt", b"1")]


def test_a_global_size_is_an_error_as_programs_differ_on_it():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"size": "1"}):
        pass
    found, error = ours(buffer.getvalue())
    assert found == []
    assert "global PAX header" in str(error)


def test_begins_are_those_of_each_members_own_headers():
    data = archive([("a.txt", b"1", 0, 0.5, 0), ("b" * 150, b"2", 0, 0, 0)], "pax")
    begins = [member.begin for member in members(ByteStream([data]))]
    assert begins == [0, 2048]
    assert [member.path for member in members(ByteStream([data[2048:]], 2048))] == ["b" * 150]
