"""JSON lines: every line once wherever the file is cut, and the values that Python's own json gives."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import pickle
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import FormatError
from streamio.formats import linewise as module
from streamio.formats.base import Bad, CorruptError, ParsingFormat, StreamedFormat
from streamio.formats.lines import Lines
from tests.formats.blocks import rows_of
from tests.formats.memory_source import MemorySource

COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def read(
    data, url="s3://bucket/a.jsonl", start=0, stop=None, chunk=1 << 16, seed=0, run=1 << 19, begin=None, **options
):
    source = MemorySource(data, url, chunk, seed, views=bool(seed % 2))
    stop = source.size if stop is None else stop
    with mock.patch.object(module, "_RUN", run):
        rows = list(rows_of(Lines(**options).blocks(source, start, stop, begin=begin)))
    assert source.open_streams == 0
    return rows


def values(data, **arguments):
    return [row.value for row in read(data, **arguments)]


def bad(data, **arguments):
    (value,) = values(data, **arguments)
    assert isinstance(value, Bad)
    return value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
some_line = st.one_of(
    st.dictionaries(st.text(max_size=5), json_values, max_size=3).map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    ),
    st.sampled_from([b"", b"  ", b"\t", b"not json", b"[1]", b"\xff", b'{"a": "' + b"x" * 3000 + b'"}']),
)
some_file = st.builds(
    lambda bom, parts, end: bom + b"".join(line + newline for line, newline in parts) + end,
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(some_line, st.sampled_from([b"\n", b"\r\n"])), max_size=12),
    some_line,
)


some_run = st.sampled_from([1, 30, 700, 1 << 19])


@given(
    data=some_file,
    cuts=st.lists(st.integers(0, 5000), max_size=6),
    chunk=st.integers(1, 600),
    seed=st.integers(0, 9),
    run=some_run,
)
def test_a_file_cut_anywhere_gives_every_line_once(data, cuts, chunk, seed, run):
    whole = read(data)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [
        row
        for start, stop in pairwise(edges)
        for row in read(data, start=start, stop=stop, chunk=chunk, seed=seed, run=run)
    ]
    assert pieces == whole


@given(data=some_file, cuts=st.lists(st.integers(0, 5000), max_size=2), chunk=st.integers(1, 600), run=some_run)
def test_reading_goes_on_from_any_record_with_the_rows_that_follow_it(data, cuts, chunk, run):
    start, *_, stop = sorted([*(cut for cut in cuts if cut < len(data)), 0, len(data)])
    if len(cuts) == 2:
        start, stop = sorted(min(cut, len(data)) for cut in cuts)
    rows = read(data, start=start, stop=stop)
    for place, row in enumerate(rows):
        assert row.seek == row.index
        assert read(data, start=start, stop=stop, begin=row.seek, chunk=chunk, run=run) == rows[place:]
        assert read(data, start=start, stop=stop, begin=row.after, chunk=chunk, run=run) == rows[place + 1 :]


@given(data=some_file)
def test_a_split_holds_the_lines_that_begin_in_it(data):
    half = len(data) // 2
    assert all(row.index < half for row in read(data, stop=half))
    assert all(row.index >= half for row in read(data, start=half))


@given(
    data=some_file,
    chunk=st.integers(1, 300),
    seed=st.integers(0, 9),
    run=some_run,
    codec=st.sampled_from(sorted(COMPRESS)),
)
def test_chunks_and_compression_make_no_difference(data, chunk, seed, run, codec):
    rows = read(COMPRESS[codec](data), url=f"s3://bucket/a.jsonl{codec}", chunk=chunk, seed=seed, run=run)
    expected = read(data)
    assert [row.told for row in rows] == [row.told for row in expected]
    assert [row.seek for row in rows] == [None if codec else row.index for row in expected]


@given(data=some_file)
def test_records_are_what_json_loads_gives(data):
    expected = []
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode())
        except ValueError:
            value = Bad
        expected.append(value if isinstance(value, dict) else Bad)
    got = [Bad if isinstance(value, Bad) else value for value in values(data)]
    assert repr(got) == repr(expected)  # repr tells 1 from 1.0 and True


@given(numbers=st.lists(st.integers(-(10**25), 10**25) | st.floats(), min_size=1, max_size=5))
def test_no_number_is_rounded(numbers):
    line = json.dumps({"n": numbers}).encode()
    data = b'{"n": []}\n' + line + b'\n{"n": [1]}'
    assert repr(values(data)) == repr([{"n": []}, json.loads(line), {"n": [1]}])


@given(
    texts=st.lists(
        st.builds(
            lambda before, sign, first, digits, behind: f"{before}{sign}{first}{digits}{'' if '.' in sign else behind}",
            st.sampled_from(['{"": ', '{"":', '{"a": [1, ', '{"key": "x", "n": ', '{"a": ":;<=>?", "b": ']),
            st.sampled_from(["", "-", "0.", "-0."]),
            st.sampled_from("123456789"),
            st.text("0123456789", min_size=14, max_size=24),
            st.sampled_from(["", ".5", "e3"]),
        ),
        min_size=1,
        max_size=4,
    ),
    padding=st.integers(0, 20),
    end=st.sampled_from(["", "\n"]),
)
def test_integers_about_the_limit_of_64_bits_are_exact_at_any_place(texts, padding, end):
    texts = [text + ("]}" if "[" in text else "}") for text in texts]
    lines = [json.dumps({"p": "x" * padding}), *texts]
    got = values(("\n".join(lines) + end).encode())
    assert repr(got) == repr([json.loads(line) for line in lines])
    assert repr(values(texts[0].encode())) == repr([json.loads(texts[0])])


@pytest.mark.parametrize(
    "number", [2**63 - 1, 2**64 - 1, -(2**63), 10**25, 1234567890123456789, 0.00013436424411240122]
)
def test_numbers_are_left_to_the_fast_parser(number, monkeypatch):
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("not needed"))
    data = b'{"n": 1}\n{"n": ' + repr(number).encode() + b"}\n"
    assert repr(values(data)) == repr([{"n": 1}, {"n": number}])


@pytest.mark.parametrize(
    "lines",
    [
        ['{"a": [{"x": 1}', ',{"y": 2}]}', '{"p": 1}{"q": 2}'],
        ['{"a": [{"x": 1}', '{"y": 2}]}', '{"p": 1} {"q": 2}'],
        ['{"a": {"x": 1}', "}", '{"p": 1}', '{"q": 2}{"r": 3}'],
        ['{"a": 1', '}{"b": 2}', '{"c": 3}'],
        ['{"a": "}', '{"}', '{"b": 1}{"c": 2}'],
        ['{"a": 1}', '{"b": 2},{"c": 3}'],
        ['{"a": 1}', "{}}", "{{}", "{}"],
    ],
)
def test_values_over_several_lines_and_several_in_one_are_no_records(lines):
    """Also where there are as many values as lines."""
    expected = []
    for line in lines:
        try:
            expected.append(json.loads(line))
        except ValueError:
            expected.append(Bad)
    got = [Bad if isinstance(value, Bad) else value for value in values(("\n".join(lines) + "\n").encode())]
    assert got == expected


@given(
    lines=st.lists(
        st.lists(st.sampled_from(["{", "}", '"a":', "1", ",", "[", "]", '"', " "]), min_size=1, max_size=7).map(
            "".join
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_lines_give_what_each_gives_alone(lines):
    text = "\n".join(f"{{{line}}}" for line in lines) + "\n"
    alone = [value for line in text.splitlines() for value in values(line.encode())]
    together = values(text.encode())
    assert [isinstance(value, Bad) or value for value in together] == [
        isinstance(value, Bad) or value for value in alone
    ]


@given(
    data=some_file, chunk=st.integers(1, 50), run=some_run, columns=st.sampled_from([None, ("a", "b")]), more=st.data()
)
def test_lines_that_wait_unparsed_give_the_same_records_in_any_order(data, chunk, run, columns, more):
    lines = Lines(columns=columns)

    def read(way):
        source = MemorySource(data, "s3://bucket/a.jsonl", chunk)  # another one: it cuts the same chunks again
        return [found.decode() for found in way(source, 0, source.size)]

    with mock.patch.object(module, "_RUN", run):
        parsed, texts = read(lines.deferred), read(lines.unparsed)
    assert len(parsed) == len(texts)
    wanted, waiting = [], []
    for block, text in zip(parsed, texts, strict=True):
        for name in ("index", "nbytes", "seek"):
            assert getattr(block, name).tolist() == getattr(text, name).tolist()
        values = block.rows.take(slice(0, len(block.rows)))
        wanted += [block.rows.bad.get(place, value) for place, value in enumerate(values)]
        waiting += zip(text.rows.take(slice(0, len(text.rows))), text.index.tolist(), strict=True)
    if waiting:
        order = more.draw(st.permutations(range(len(waiting))))
        column = pa.array([waiting[one][0]["line"] for one in order], pa.large_binary())
        low = more.draw(st.integers(0, len(order) - 1))
        rows = lines.parsed(column[low:], np.array([waiting[one][1] for one in order[low:]], np.int64))
        found = rows.take(slice(0, len(rows)))
        assert [rows.bad.get(place, value) for place, value in enumerate(found)] == [wanted[one] for one in order[low:]]


def test_the_index_is_the_offset_in_the_uncompressed_text():
    data = b'{"a": 1}\r\n\n  \n{"a": 2}\n{"a": 3}'
    for codec, compress in COMPRESS.items():
        rows = read(compress(data), url=f"s3://bucket/a.jsonl{codec}")
        assert [(row.index, row.value) for row in rows] == [(0, {"a": 1}), (14, {"a": 2}), (23, {"a": 3})]


def test_a_crlf_line_is_read_without_its_cr():
    assert values(b'{"a": "x"}\r\n{"b": 1}\r\n') == [{"a": "x"}, {"b": 1}]


def test_a_missing_last_newline_does_not_matter():
    assert values(b'{"a": 1}\n{"a": 2}') == values(b'{"a": 1}\n{"a": 2}\n') == [{"a": 1}, {"a": 2}]


def test_a_byte_order_mark_is_left_out_at_the_start_only():
    assert values(b'\xef\xbb\xbf{"a": 1}\n{"a": 2}') == [{"a": 1}, {"a": 2}]
    assert values(b"\xef\xbb\xbf") == values(b"\xef\xbb\xbf\r\n") == []
    assert isinstance(values(b'{"a": 1}\n\xef\xbb\xbf{"a": 2}')[1], Bad)


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n\r\n", b"  \n\t\n   "])
def test_empty_files_and_blank_lines_have_no_records(data):
    for codec, compress in COMPRESS.items():
        assert read(compress(data), url=f"s3://bucket/a.jsonl{codec}") == []


def test_an_empty_object_of_a_compressed_suffix_has_no_records():
    assert read(b"", url="s3://bucket/a.jsonl.gz") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"not json", "not JSON: Expecting value"),
        (b'{"a": 1', "not JSON"),
        (b'{"a": 1} {"b": 2}', "Extra data"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b"[1, 2]", "not an array"),
        (b'"text"', "not a string"),
        (b"3.5", "not a number"),
        (b"12345678901234567890123", "not a number"),
        (b"true", "not a truth value"),
        (b"null", "not null"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not usable as JSON: Exceeds the limit"),
        (b'{"a": ' + b"[" * 300_000 + b"]" * 300_000 + b"}", "not usable as JSON"),
        (b'{"a":1}\x00', "not JSON"),
    ],
)
def test_a_line_that_is_no_object_stands_as_bad_with_its_offset(line, message):
    rows = read(b'{"a": 0}\n' + line + b'\n{"a": 2}\n')
    assert [row.value for row in rows[::2]] == [{"a": 0}, {"a": 2}]
    value = rows[1].value
    assert isinstance(value, Bad)
    assert value.reason == "json"
    assert message in value.message
    assert value.position == "byte 9"


def test_nan_and_infinity_are_read_as_json_loads_does():
    (value,) = values(b'{"a": [NaN, Infinity, -Infinity, 1e999]}')
    assert math.isnan(value["a"][0])
    assert value["a"][1:] == [math.inf, -math.inf, math.inf]


def test_a_lone_surrogate_escape_is_read_as_json_loads_does():
    assert values(rb'{"a": "\ud800"}') == [{"a": "\ud800"}]


def test_columns_keep_their_order_and_missing_ones_are_none():
    data = b'{"a": 1, "b": 2, "c": 3}\n{"c": 4}\nbad\n'
    got = values(data, columns=("c", "a"))
    assert [list(value.items()) for value in got[:2]] == [[("c", 3), ("a", 1)], [("c", 4), ("a", None)]]
    assert isinstance(got[2], Bad)
    assert values(data[:-4], columns=("c", "a")) == got[:2]
    assert values(data[:-4], columns=("b",)) == [{"b": 2}, {"b": None}]


def test_the_size_of_a_row_follows_from_its_line():
    short, long = read(b'{"a": 1}\n{"a": "' + b"x" * 10_000 + b'"}\n')
    assert short.nbytes < 1000
    assert 10_000 < long.nbytes < 12_000


def test_a_line_far_longer_than_a_split_is_read_whole():
    line = json.dumps({"a": "x" * 300_000}).encode()
    data = line + b"\n" + line + b"\n" + b'{"b": 1}'
    rows = [
        row for start in range(0, len(data), 1000) for row in read(data, start=start, stop=min(start + 1000, len(data)))
    ]
    assert [row.index for row in rows] == [0, len(line) + 1, 2 * len(line) + 2]


def test_a_split_reads_little_more_than_its_own_bytes():
    data = b'{"a": 1}\n' * 200_000
    source = MemorySource(data, "s3://bucket/a.jsonl")
    assert len(list(rows_of(Lines().blocks(source, 0, 900)))) == 100
    assert source.reads == []  # what follows the split came with its stream


def test_a_line_longer_than_the_limit_makes_the_split_unreadable(monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE", 100_000)
    monkeypatch.setattr(module, "_RUN", 1000)
    data = b'{"a": 1}\n{"b": "' + b"x" * 300_000 + b'"}\n{"c": 1}\n'
    rows = rows_of(Lines().blocks(MemorySource(data, "s3://bucket/a.jsonl", chunk=1000), 0, len(data)))
    assert next(rows).value == {"a": 1}
    with pytest.raises(CorruptError, match="longer than 100000 bytes") as caught:
        next(rows)
    assert caught.value.position == "byte 9"


@pytest.mark.parametrize("codec", [".gz", ".zst", ".bz2", ".xz"])
def test_a_compressed_file_cut_short_gives_its_whole_lines_and_an_error(codec):
    text = b"".join(b'{"n": %d}\n' % n for n in range(200_000))
    data = COMPRESS[codec](text)
    data = data[: len(data) * 3 // 4]
    rows = rows_of(Lines().blocks(MemorySource(data, f"s3://bucket/a.jsonl{codec}"), 0, len(data)))
    got = []
    with pytest.raises(CorruptError, match="cut short"):
        got.extend(row.value for row in rows)
    assert len(got) > 1000
    assert got == [{"n": n} for n in range(len(got))]  # the line that the cut fell into is not among them


ARRAY = b'\n [{"a": 1},\n{"a": 2}]\n'
PRETTY = json.dumps({"a": 1, "b": [1, 2]}, indent=2).encode()


@pytest.mark.parametrize("codec", sorted(COMPRESS))
@pytest.mark.parametrize(
    ("data", "what"), [(ARRAY, "one JSON array"), (PRETTY, "several lines"), (b"\xef\xbb\xbf[]", "array")]
)
def test_a_json_file_that_is_one_document_is_refused_by_name(codec, data, what):
    with pytest.raises(FormatError, match=what) as caught:
        read(COMPRESS[codec](data), url=f"s3://bucket/a.json{codec}")
    assert f"s3://bucket/a.json{codec}" in str(caught.value)
    assert "JSON lines" in str(caught.value)


def test_a_json_document_is_refused_by_its_later_splits_too():
    with pytest.raises(FormatError, match="one JSON array"):
        read(ARRAY, url="s3://bucket/a.json", start=12)


def test_a_json_file_of_lines_is_read():
    assert values(b'\n{"a": 1}\n{"a": 2}\n', url="s3://bucket/a.json") == [{"a": 1}, {"a": 2}]


def test_a_damaged_first_line_of_a_jsonl_file_is_one_bad_record():
    got = values(b'[{"a"\n{"a": 2}\n')
    assert isinstance(got[0], Bad)
    assert got[1] == {"a": 2}


def test_only_plain_files_may_be_cut():
    assert Lines().cuttable("s3://bucket/a.jsonl")
    assert Lines().cuttable("s3://bucket/part-0001")
    assert not Lines().cuttable("s3://bucket/a.jsonl.gz")
    assert not Lines().cuttable("s3://bucket/A.JSON.ZST")
    assert not Lines().cuttable("s3://bucket/a.jsonl.bz2")
    assert not Lines().cuttable("s3://bucket/a.jsonl.xz")


@pytest.mark.parametrize("chunk", [3000, 1 << 22])
def test_blocks_are_of_some_size_whatever_the_chunks_are(chunk):
    data = b'{"a": "' + b"x" * 90 + b'"}\n'
    source = MemorySource(data * 40_000, "s3://bucket/a.jsonl", chunk)
    sizes = [len(block.rows) * len(data) for block in Lines().blocks(source, 0, source.size)]
    assert all(1 << 18 < size <= 1 << 20 for size in sizes[:-1])
    assert 4 < len(sizes) < 16


def test_a_reader_that_stops_early_closes_the_stream():
    for codec, compress in COMPRESS.items():
        source = MemorySource(compress(b'{"a": 1}\n' * 400_000), f"s3://bucket/a.jsonl{codec}")
        rows = rows_of(Lines().blocks(source, 0, source.size))
        next(rows)
        assert source.open_streams == 1
        rows.close()
        assert source.open_streams == 0


def test_the_format_is_a_picklable_value():
    lines = Lines(columns=("a",))
    assert isinstance(lines, StreamedFormat)
    assert isinstance(lines, ParsingFormat)
    assert pickle.loads(pickle.dumps(lines)) == lines


class CountingSource(MemorySource):
    """Counts the bytes that its streams and reads give away."""

    given = 0

    def read(self, start, stop):
        self.given += stop - start
        return super().read(start, stop)

    def stream(self, start=0, stop=None):
        for chunk in super().stream(start, stop):
            self.given += len(chunk)
            yield chunk


def test_a_line_longer_than_many_splits_is_read_once_and_not_again_by_those_within_it():
    data = b'{"a": 1}\n{"b": "' + b"x" * 8_000_000 + b'"}\n{"c": 1}\n'
    source = CountingSource(data, "s3://bucket/a.jsonl")
    cuts = [*range(0, len(data), 500_000), len(data)]
    rows = [row for start, stop in pairwise(cuts) for row in rows_of(Lines().blocks(source, start, stop))]
    assert [list(row.value) for row in rows] == [["a"], ["b"], ["c"]]
    assert source.given < 2.4 * len(data)  # once by the split in which it begins, once in search of the next line
    assert source.open_streams == 0


def test_a_line_longer_than_the_limit_is_one_error_in_the_split_in_which_it_begins(monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE", 100_000)
    monkeypatch.setattr(module, "_RUN", 1000)
    data = b'{"a": 1}\n{"b": "' + b"x" * 300_000 + b'"}\n{"c": 1}\n'
    source = MemorySource(data, "s3://bucket/a.jsonl", chunk=1000)
    cuts = [*range(0, len(data), 50_000), len(data)]
    with pytest.raises(CorruptError, match="longer than"):
        list(rows_of(Lines().blocks(source, *cuts[:2])))
    rest = [row.value for start, stop in pairwise(cuts[1:]) for row in rows_of(Lines().blocks(source, start, stop))]
    assert rest == [{"c": 1}]


def test_an_error_about_a_document_shows_no_signature_of_its_url():
    with pytest.raises(FormatError) as caught:
        read(b"[\n1]\n", url="https://me:p@ss@host/a.json?X-Amz-Signature=verborgen")
    assert "host/a.json" in str(caught.value)
    assert "ss@host" not in str(caught.value)
    assert "verborgen" not in str(caught.value)
