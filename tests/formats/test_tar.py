"""Tar files of samples: the same members as `tarfile` finds, and no damage read over in silence."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import string
import tarfile
from unittest import mock

import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from streamio.errors import DropRecord
from streamio.formats import tar as module
from streamio.formats.base import Bad, CorruptError, StreamedFormat
from streamio.formats.tar import Tar
from tests.formats.blocks import rows_of
from tests.formats.memory_source import MemorySource

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(members, kind="pax", **options):
    """A tar of (name, bytes) pairs, or of TarInfo objects."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[kind], **options) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def read(data, url="s3://bucket/a.tar", chunk=1 << 16, seed=0, block=1 << 20, first=0, begin=None, **options):
    source = MemorySource(data, url, chunk, seed, views=bool(seed % 2))
    with mock.patch.object(module, "_BLOCK_BYTES", block):
        rows = list(rows_of(Tar(**options).blocks(source, 0, source.size, first, begin)))
    assert source.open_streams == 0
    return rows


def values(data, **arguments):
    return [row.value for row in read(data, **arguments)]


def through_tarfile(data):
    """The samples that the standard library finds, or None where it refuses."""
    samples = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            folder, slash, base = info.name.rpartition("/")
            stem, dot, extension = base.partition(".")
            if not info.isreg() or not stem or not dot:
                continue
            key = folder + slash + stem
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            assert extension.lower() not in samples[-1]
            samples[-1][extension.lower()] = tar.extractfile(info).read()
    return samples


letters = st.text(string.ascii_letters + "-_ äπ☃𝄞", min_size=1, max_size=12).filter(lambda name: name != "__MACOSX")
names = st.builds(
    lambda folders, stem, width: "/".join([*folders, stem * width]),
    st.lists(letters, max_size=3),
    letters,
    st.sampled_from([1, 1, 1, 20]),
)
samples = st.lists(
    st.tuples(
        names,
        st.dictionaries(
            st.sampled_from(["json", "jpg", "seg.png", "cls", "tar.gz"]),
            st.binary(max_size=40).flatmap(lambda data: st.sampled_from([data, data * 50])),
            min_size=1,
            max_size=3,
        ),
    ),
    max_size=6,
    unique_by=lambda sample: sample[0],
)


def members_of(wanted):
    return [(f"{key}.{extension}", data) for key, parts in wanted for extension, data in parts.items()]


@given(wanted=samples, kind=st.sampled_from(["gnu", "pax"]), chunk=st.integers(1, 3000), seed=st.integers(0, 9))
def test_any_archive_gives_the_samples_that_were_written_and_that_tarfile_finds(wanted, kind, chunk, seed):
    data = archive(members_of(wanted), kind)
    got = values(data, chunk=chunk, seed=seed)
    assert got == [{"__key__": key, **parts} for key, parts in wanted]
    assert got == through_tarfile(data)


@given(
    wanted=samples,
    kind=st.sampled_from(sorted(FORMATS)),
    extra=st.sampled_from([{}, {"comment": "x"}, {"path": "every.one"}]),
    joined=st.booleans(),
    chunk=st.integers(1, 3000),
    seed=st.integers(0, 9),
    block=st.sampled_from([1, 400, 5000, 1 << 20]),
)
def test_reading_goes_on_from_any_sample_that_tells_a_place(wanted, kind, extra, joined, chunk, seed, block):
    named = kind != "pax" or "path" not in extra
    plain = (
        [(key.encode("ascii", "replace").decode()[:50], parts) for key, parts in wanted] if kind == "ustar" else wanted
    )
    data = archive([tarfile.TarInfo("folder/README"), *members_of(plain)], kind, pax_headers=extra)
    if joined:
        data += archive([("joined.txt", b"1")], kind)
    rows = read(data)
    assert read(data, chunk=chunk, seed=seed, block=block) == rows
    for row in rows:
        assert (row.seek is not None) == named
        if named:
            again = read(data, first=row.index, begin=row.seek, chunk=chunk, seed=seed, block=block)
            assert again == rows[row.index :]
            again = read(data, first=row.index + 1, begin=row.after, chunk=chunk, seed=seed, block=block)
            assert again == rows[row.index + 1 :]


def test_samples_behind_a_global_name_tell_no_place_and_those_before_it_do():
    data = archive([("a.txt", b"1"), ("b.txt", b"2")])[:2048] + archive(
        [("c.txt", b"3")], pax_headers={"path": "d.txt"}
    )
    rows = read(data)
    assert [(row.value["__key__"], row.seek) for row in rows] == [("a", 0), ("b", 1024), ("d", None)]
    assert read(data, first=1, begin=1024) == rows[1:]


def test_compressed_archives_tell_no_place():
    assert [row.seek for row in read(gzip.compress(archive([("a.txt", b"1")])), url="s3://bucket/a.tgz")] == [None]


@given(
    parts=st.lists(st.tuples(st.integers(0, 999), st.binary(max_size=2000)), max_size=6, unique_by=lambda part: part[0])
)
def test_ustar_archives_with_split_long_names_are_read(parts):
    data = archive([(f"{'folder/' * 18}{number:03d}.{'e' * 60}", part) for number, part in parts], "ustar")
    assert values(data) == through_tarfile(data)


@given(wanted=samples.filter(len), place=st.integers(0, 1 << 20), kind=st.sampled_from(["gnu", "pax"]))
def test_an_archive_cut_short_anywhere_gives_whole_samples_and_an_error(wanted, place, kind):
    data = archive(members_of(wanted), kind)
    end = len(data.rstrip(b"\0")) + -len(data.rstrip(b"\0")) % 512
    cut = 1 + place % end
    whole = values(data)
    source = MemorySource(data[:cut], "s3://bucket/a.tar")
    got = []
    with pytest.raises(CorruptError, match="short"):
        got.extend(row.value for row in rows_of(Tar().blocks(source, 0, source.size)))
    assert got == whole[: len(got)]
    assert len(got) < len(whole)


@given(wanted=samples.filter(len), place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_header_is_an_error_after_the_whole_samples_before_it(wanted, place, bit):
    data = bytearray(archive(members_of(wanted), "gnu"))
    with tarfile.open(fileobj=io.BytesIO(bytes(data))) as tar:
        headers = [info.offset_data - 512 for info in tar]
    whole = values(bytes(data))
    header = headers[place % len(headers)]
    assume(place // 7 % 512 != 155)  # behind the checksum's NUL: it says nothing
    data[header + place // 7 % 512] ^= 1 << bit
    source = MemorySource(bytes(data), "s3://bucket/a.tar")
    got = []
    with pytest.raises(CorruptError, match="tar header is damaged") as caught:
        got.extend(row.value for row in rows_of(Tar().blocks(source, 0, source.size)))
    assert caught.value.position == f"byte {header}"
    assert got == whole[: len(got)]
    assert len(got) < len(whole)


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.tar.gz", gzip.compress),
        ("a.tgz", gzip.compress),
        ("A.TAR.ZST", zstandard.compress),
        ("a.tar.bz2", bz2.compress),
        ("a.tbz2", bz2.compress),
        ("a.tar.xz", lzma.compress),
        ("a.txz", lzma.compress),
        ("a.tar", lambda data: data),
    ],
)
def test_every_suffix_is_read(name, compress):
    data = compress(archive([("a.txt", b"1"), ("b.txt", b"2")]))
    assert values(data, url=f"s3://bucket/{name}") == [
        {"__key__": "a", "txt": b"1"},
        {"__key__": "b", "txt": b"2"},
    ]
    assert not Tar().cuttable(f"s3://bucket/{name}")


def test_a_compressed_archive_cut_short_gives_whole_samples_and_an_error():
    members = [(f"{n:04d}.bin", bytes([n % 256]) * 700) for n in range(500)]
    data = gzip.compress(archive(members), 1)[:-3000]
    source = MemorySource(data, "s3://bucket/a.tar.gz")
    got = []
    with pytest.raises(CorruptError, match="cut short"):
        got.extend(row.value for row in rows_of(Tar().blocks(source, 0, source.size)))
    assert 10 < len(got) < 500
    assert got == [{"__key__": name[:-4], "bin": data} for name, data in members[: len(got)]]


def test_keys_keep_folders_and_extensions_are_lower_case_after_the_first_dot():
    data = archive([("x/y.z/a.SEG.Png", b"1"), ("x/y.z/a.json", b"{}"), ("./b.v1.txt", b"2")])
    assert values(data) == [
        {"__key__": "x/y.z/a", "seg.png": b"1", "json": b"{}"},
        {"__key__": "./b", "v1.txt": b"2"},
    ]


def test_members_of_one_key_that_are_apart_are_two_samples():
    data = archive([("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3")])
    assert [row.index for row in read(data)] == [0, 1, 2]
    assert values(data)[2] == {"__key__": "a", "y": b"3"}


def test_zero_length_members_are_kept():
    assert values(archive([("a.x", b""), ("a.y", b"1")])) == [{"__key__": "a", "x": b"", "y": b"1"}]


def test_hidden_members_folders_devices_and_names_without_an_extension_are_left_out():
    folder, device, fifo = tarfile.TarInfo("a"), tarfile.TarInfo("dev.x"), tarfile.TarInfo("fifo.x")
    folder.type, device.type, fifo.type = tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE
    members = [folder, ("a/.hidden.x", b"1"), ("a/1.x", b"2"), ("__MACOSX/a/1.x", b"3"), device, fifo, ("README", b"4")]
    assert values(archive(members)) == [{"__key__": "a/1", "x": b"2"}]


def test_two_members_of_one_extension_make_a_bad_sample():
    rows = read(archive([("a.JPG", b"1"), ("a.jpg", b"2"), ("b.jpg", b"3"), ("c.__key__", b"4")]))
    assert rows[1].value == {"__key__": "b", "jpg": b"3"}
    for index, name in ((0, "jpg"), (2, "__key__")):
        assert isinstance(rows[index].value, Bad)
        assert rows[index].value.reason == "tar"
        assert repr(name) in rows[index].value.message
        assert rows[index].value.position == f"sample {index}"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_makes_its_sample_bad_as_its_data_are_not_there(kind):
    link = tarfile.TarInfo("b.jpg")
    link.type, link.linkname, link.size = kind, "a.jpg" * 40, 1234
    got = values(archive([("a.jpg", b"1"), link, ("b.json", b"{}"), ("c.jpg", b"2")], "gnu"))
    assert got[0] == {"__key__": "a", "jpg": b"1"}
    assert isinstance(got[1], Bad)
    assert "link" in got[1].message
    assert got[2] == {"__key__": "c", "jpg": b"2"}


def test_sparse_members_make_their_sample_bad_and_the_rest_is_read():
    old = tarfile.TarInfo("b.bin")
    old.type, old.size = tarfile.GNUTYPE_SPARSE, 700
    header = bytearray(old.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1  # another block of the map follows
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    gnu = bytes(header) + bytes(512) + b"x" * 700 + bytes(324)
    new = tarfile.TarInfo("GNUSparseFile.0/c.bin")
    new.size = 512
    new.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "c.bin"}
    pax = new.tobuf(tarfile.PAX_FORMAT) + b"y" * 512
    data = archive([("a.bin", b"1")])[:1024] + gnu + pax + archive([("d.bin", b"2")])
    got = values(data)
    assert got[0] == {"__key__": "a", "bin": b"1"}
    assert got[3] == {"__key__": "d", "bin": b"2"}
    for value, name in zip(got[1:3], ("b.bin", "c.bin"), strict=True):
        assert isinstance(value, Bad)
        assert "sparse" in value.message
        assert name in value.message


def test_global_pax_headers_hold_for_all_and_own_ones_come_first():
    info = tarfile.TarInfo("short.txt")
    info.size, info.pax_headers = 1, {"path": "own.txt", "comment": "x" * 2000}
    data = archive([("a.txt", b"1")], pax_headers={"comment": "ünïcödé"})
    own = info.tobuf(tarfile.PAX_FORMAT) + b"2" + bytes(511)
    got = values(data + own + bytes(1024))
    assert got == [{"__key__": "a", "txt": b"1"}, {"__key__": "own", "txt": b"2"}]


def test_a_pax_size_is_believed_before_the_one_in_the_header():
    info = tarfile.TarInfo("big.bin")
    info.size, info.pax_headers = 0, {"size": "600"}
    data = info.tobuf(tarfile.PAX_FORMAT) + b"z" * 600 + bytes(424) + archive([("a.bin", b"1")])
    assert values(data) == [{"__key__": "big", "bin": b"z" * 600}, {"__key__": "a", "bin": b"1"}]


@pytest.mark.parametrize(
    "record", [b"6 a=b", b"99 path=x\n", b"x path=y\n", b"9 pathxy\n", b"0 a=b\n", b" \n", b"10 size=x\n"]
)
def test_a_damaged_pax_header_is_an_error(record):
    header = tarfile.TarInfo("PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    data = header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + archive([("a.txt", b"1")])
    with pytest.raises(CorruptError, match="PAX header is damaged") as caught:
        read(data)
    assert caught.value.position in ("byte 0", "byte 1024")


def test_archives_joined_with_cat_are_read_to_the_end():
    data = archive([("a.txt", b"1")]) + archive([("b.txt", b"2")])
    assert values(data) == [{"__key__": "a", "txt": b"1"}, {"__key__": "b", "txt": b"2"}]


@pytest.mark.parametrize("kind", ["pax", "gnu"])
def test_a_header_wiped_out_is_an_error_even_if_its_member_was_empty(kind):
    for name in ("b.txt", "b" * 200 + ".txt"):
        data = bytearray(archive([("a.txt", b""), (name, b""), ("c.txt", b"")], kind))
        with tarfile.open(fileobj=io.BytesIO(bytes(data))) as tar:
            header = tar.getmember(name).offset_data - 512
        data[header : header + 512] = bytes(512)
        with pytest.raises(CorruptError, match=r"lone block of zeros|is missing") as caught:
            read(bytes(data))
        assert caught.value.position == f"byte {header}"


@pytest.mark.parametrize("data", [b"", bytes(512), bytes(1024), archive([])])
def test_empty_archives_have_no_samples(data):
    assert read(data) == []


def test_an_archive_without_its_end_marker_is_cut_short():
    data = archive([("a.txt", b"1"), ("b.txt", b"2"), ("b.json", b"3")])
    source = MemorySource(data[: 4 * 512], "s3://bucket/a.tar")
    rows = rows_of(Tar().blocks(source, 0, source.size))
    assert next(rows).value == {"__key__": "a", "txt": b"1"}
    with pytest.raises(CorruptError, match="no end marker"):
        next(rows)  # b is not told, as its json may be missing


def test_a_file_that_is_no_archive_is_an_error():
    with pytest.raises(CorruptError, match="damaged") as caught:
        read(b"hello " * 1000)
    assert caught.value.position == "byte 0"


def test_decoders_are_chosen_by_whole_extension_then_by_its_last_part():
    decode = {"json": json.loads, "CLS": int, ".seg.png": lambda data: "whole", "png": lambda data: "last"}
    data = archive([("a.json", b'{"x": 1}'), ("a.cls", b"7"), ("a.seg.png", b""), ("a.rgb.PNG", b""), ("a.txt", b"t")])
    assert values(data, decode=decode) == [
        {"__key__": "a", "json": {"x": 1}, "cls": 7, "seg.png": "whole", "rgb.png": "last", "txt": b"t"}
    ]


def test_a_decoder_that_fails_makes_one_bad_sample():
    got = values(archive([("a.cls", b"1"), ("b.cls", b"x"), ("c.cls", b"3")]), decode={"cls": int})
    assert got[0] == {"__key__": "a", "cls": 1}
    assert got[2] == {"__key__": "c", "cls": 3}
    assert isinstance(got[1], Bad)
    assert (got[1].reason, got[1].position) == ("decode", "sample 1")
    assert "'b'" in got[1].message
    assert "ValueError" in got[1].message


def test_a_decoder_may_drop_a_sample_with_its_own_reason():
    def refuse(data):
        raise DropRecord("too_long", "more than a line")

    (value,) = values(archive([("a.txt", b"1")]), decode={"txt": refuse})
    assert value == Bad("too_long", "sample 'a': more than a line", "sample 0")


def test_the_size_of_a_row_follows_from_its_members():
    small, large = read(archive([("a.x", b"1"), ("b.x", b"1" * 10_000), ("b.y", b"1" * 5000)]))
    assert small.nbytes < 1000
    assert 15_000 < large.nbytes < 16_000


def test_blocks_hold_about_a_mebibyte_and_a_larger_sample_is_one_of_its_own():
    sizes = [300_000] * 7 + [3_000_000, 10]
    data = archive([(f"{n}.x", bytes(size)) for n, size in enumerate(sizes)])
    source = MemorySource(data, "s3://bucket/a.tar", chunk=700_000)
    blocks = list(Tar().blocks(source, 0, source.size))
    assert [block.index.tolist() for block in blocks] == [[0, 1, 2], [3, 4, 5], [6], [7], [8]]


def test_members_are_bytes_of_their_own_however_they_lie_in_chunks():
    data = archive([(f"{n}.x", bytes([n]) * 2000) for n in range(20)])
    for views in (True, False):
        source = MemorySource(data, "s3://bucket/a.tar", chunk=5000, views=views)
        (block,) = Tar().blocks(source, 0, source.size)
        assert {type(value["x"]) for value in block.rows.take(slice(0, 20))} == {bytes}


def test_a_reader_that_stops_early_closes_the_stream():
    source = MemorySource(archive([(f"{n}.x", b"1" * 5000) for n in range(500)]), "s3://bucket/a.tar", chunk=4000)
    rows = rows_of(Tar().blocks(source, 0, source.size))
    next(rows)
    assert source.open_streams == 1
    rows.close()
    assert source.open_streams == 0


def test_the_format_is_a_picklable_value():
    tar = Tar(decode={"json": json.loads})
    assert isinstance(tar, StreamedFormat)
    assert pickle.loads(pickle.dumps(tar)) == tar


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 20])
def test_a_pax_size_that_can_not_be_is_an_error_of_the_archive(digits):
    tail = f" size={digits}\n".encode()
    record = str(len(tail) + len(str(len(tail)))).encode() + tail
    header = tarfile.TarInfo("header")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    data = header.tobuf() + record + b"\0" * (-len(record) % 512) + archive([("a.txt", b"1")])
    with pytest.raises(CorruptError, match="PAX header is damaged: its size is '9") as caught:
        list(rows_of(Tar().blocks(MemorySource(data, "s3://bucket/a.tar"), 0, len(data))))
    assert len(str(caught.value)) < 120
