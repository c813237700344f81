"""Text: every line once wherever the file is cut, and the text that was written."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
from itertools import pairwise
from unittest import mock

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamio.formats import linewise
from streamio.formats.base import Bad, CorruptError, StreamedFormat
from streamio.formats.text import Text
from tests.formats.blocks import rows_of
from tests.formats.memory_source import MemorySource

COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def read(data, url="s3://bucket/a.txt", start=0, stop=None, chunk=1 << 16, seed=0, run=1 << 19, begin=None):
    source = MemorySource(data, url, chunk, seed, views=bool(seed % 2))
    stop = source.size if stop is None else stop
    with mock.patch.object(linewise, "_RUN", run):
        rows = list(rows_of(Text().blocks(source, start, stop, begin=begin)))
    assert source.open_streams == 0
    return rows


def texts(data, **arguments):
    return [row.value["text"] for row in read(data, **arguments)]


some_line = st.one_of(
    st.text(max_size=20).map(lambda text: text.replace("\n", "").encode("utf-8", "replace")),
    st.sampled_from([b"", b" ", b"\r", b"a\r\r", b"\xff", b"\xc3", b"x" * 3000, "ä☃𝄞".encode(), b"\xef\xbb\xbf"]),
)
some_file = st.builds(
    lambda bom, parts, end: bom + b"".join(line + newline for line, newline in parts) + end,
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(some_line, st.sampled_from([b"\n", b"\r\n"])), max_size=12),
    some_line,
)
some_run = st.sampled_from([1, 30, 700, 1 << 19])


def expected(data):
    """One line after the other, in the plainest way."""
    lines = data.split(b"\n")
    ended = [line.removesuffix(b"\r") for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    values = []
    for place, line in enumerate(ended):
        try:
            values.append((line.removeprefix(b"\xef\xbb\xbf") if place == 0 else line).decode())
        except UnicodeDecodeError:
            values.append(None)
    return values


@given(data=some_file, chunk=st.integers(1, 600), seed=st.integers(0, 9), run=some_run)
def test_every_line_is_a_record_with_its_text(data, chunk, seed, run):
    rows = read(data, chunk=chunk, seed=seed, run=run)
    assert [None if isinstance(row.value, Bad) else row.value["text"] for row in rows] == expected(data)
    lengths = [len(line) + 1 for line in data.split(b"\n")]
    assert [row.index for row in rows] == [sum(lengths[:place]) for place in range(len(rows))]
    assert [row.nbytes for row in rows] == [length + 255 for length in lengths[: len(rows)]]


@given(
    data=some_file,
    cuts=st.lists(st.integers(0, 5000), max_size=6),
    chunk=st.integers(1, 600),
    seed=st.integers(0, 9),
    run=some_run,
)
def test_a_file_cut_anywhere_gives_every_line_once(data, cuts, chunk, seed, run):
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [
        row
        for start, stop in pairwise(edges)
        for row in read(data, start=start, stop=stop, chunk=chunk, seed=seed, run=run)
    ]
    assert pieces == read(data)


@given(data=some_file, cut=st.integers(0, 5000), chunk=st.integers(1, 600), run=some_run)
def test_reading_goes_on_from_any_line_with_those_that_follow_it(data, cut, chunk, run):
    stop = min(cut, len(data))
    rows = read(data, stop=stop)
    for place, row in enumerate(rows):
        assert row.seek == row.index
        assert read(data, stop=stop, begin=row.seek, chunk=chunk, run=run) == rows[place:]
        assert read(data, stop=stop, begin=row.after, chunk=chunk, run=run) == rows[place + 1 :]


@given(data=some_file, chunk=st.integers(1, 300), run=some_run, codec=st.sampled_from(sorted(COMPRESS)))
def test_compression_makes_no_difference_but_to_the_places_to_go_on_from(data, chunk, run, codec):
    rows = read(COMPRESS[codec](data), url=f"s3://bucket/a.txt{codec}", chunk=chunk, run=run)
    assert [row.told for row in rows] == [row.told for row in read(data)]
    assert all((row.seek is None) == bool(codec) for row in rows)


def test_blank_lines_are_records_and_what_follows_the_last_newline_is_none():
    assert texts(b"a\n\n  \r\n\nb\n") == ["a", "", "  ", "", "b"]
    assert texts(b"a\n") == texts(b"a") == ["a"]
    assert texts(b"\n") == [""]
    assert read(b"") == []


def test_only_a_cr_before_the_newline_is_left_out():
    assert texts(b"a\rb\r\r\nc\r") == ["a\rb\r", "c\r"]


def test_other_line_ends_of_unicode_end_no_line():
    assert texts("a\u2028b\x0bc\x85d\n".encode()) == ["a\u2028b\x0bc\x85d"]


def test_a_line_that_is_not_utf8_stands_as_bad_with_its_offset_and_the_others_are_read():
    rows = read(b"one\nt\xffwo\nthree\xc3\n")
    assert rows[0].value == {"text": "one"}
    assert rows[1].value == Bad("text", "not UTF-8: invalid start byte at byte 1 of the line", "byte 4")
    assert rows[2].value == Bad("text", "not UTF-8: unexpected end of data at byte 5 of the line", "byte 9")


def test_a_compressed_file_cut_short_gives_its_whole_lines_and_an_error():
    text = b"".join(b"line %d\n" % n for n in range(300_000))
    for codec in (".gz", ".zst", ".bz2", ".xz"):
        data = COMPRESS[codec](text)
        data = data[: len(data) * 3 // 4]
        rows = rows_of(Text().blocks(MemorySource(data, f"s3://bucket/a.txt{codec}"), 0, len(data)))
        got = []
        with pytest.raises(CorruptError, match="cut short"):
            got.extend(row.value["text"] for row in rows)
        assert len(got) > 1000
        assert got == [f"line {n}" for n in range(len(got))]


def test_a_reader_that_stops_early_closes_the_stream():
    source = MemorySource(b"line\n" * 400_000, "s3://bucket/a.txt")
    rows = rows_of(Text().blocks(source, 0, source.size))
    next(rows)
    assert source.open_streams == 1
    rows.close()
    assert source.open_streams == 0


def test_the_format_is_a_picklable_value_and_only_plain_files_may_be_cut():
    assert isinstance(Text(), StreamedFormat)
    assert pickle.loads(pickle.dumps(Text())) == Text()
    assert Text().cuttable("s3://bucket/a.txt")
    assert Text().cuttable("s3://bucket/part-0001")
    assert not any(Text().cuttable(f"s3://bucket/a.txt{codec}") for codec in (".gz", ".zst", ".bz2", ".xz"))
