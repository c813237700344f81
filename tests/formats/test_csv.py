"""CSV: any values there and back, bad rows in their place, types, codecs, and damage that is told."""

from __future__ import annotations

import bz2
import csv
import datetime
import gzip
import io
import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import FormatError, ReadError
from streamio.formats.base import CorruptError, StreamedFormat
from streamio.formats.csv import Csv
from tests.formats.memory_source import MemorySource

URL = "s3://bucket/a.csv"


def written(rows, delimiter=","):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def blocks(data, url=URL, first=0, chunk=1 << 16, seed=0, **options):
    source = MemorySource(data, url, chunk, seed)
    found = list(Csv(**options).blocks(source, 0, source.size, first))
    assert source.open_streams == 0
    return found


def slots(data, url=URL, first=0, **options):
    """Index and record of each slot; of a bad one its reason, message and position."""
    found = []
    for block in blocks(data, url, first, **options):
        assert len(block.rows) == len(block.index) == len(block.nbytes)
        values = block.rows.take(slice(0, len(block.rows)))
        for place, index in enumerate(block.index.tolist()):
            bad = block.rows.bad.get(place)
            found.append((index, values[place] if bad is None else (bad.reason, bad.message, bad.position)))
    return found


def records(data, url=URL, **options):
    return [value for _, value in slots(data, url, **options)]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6)


@given(
    rows=st.lists(st.tuples(texts, texts, texts), max_size=20),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    chunk=st.integers(1, 40),
    seed=st.integers(0, 100),
)
def test_any_text_comes_back(rows, delimiter, chunk, seed):
    data = written([("a", "b", "ü"), *rows], delimiter)
    expected = [(number, dict(zip("abü", row, strict=True))) for number, row in enumerate(rows)]
    assert slots(data, chunk=chunk, seed=seed, delimiter=delimiter) == expected
    first = len(rows) // 2
    assert slots(data, first=first, chunk=chunk, seed=seed, delimiter=delimiter) == expected[first:]


def many(rows=60_000):
    generator = random.Random(0)
    for number in range(rows):
        fields = [str(number), f'{generator.random()}\n"{number}", or', "x" * (number % 50)]
        yield fields + ["more"] * (number % 9_000 == 8_999)


@pytest.fixture(scope="module")
def large():
    """4 MB of rows, some of them with a field too many."""
    return written([("id", "text", "xs"), *many()])


def test_blocks_follow_from_the_bytes_alone(large):
    seen = []
    for chunk in (1 << 12, 1 << 22):
        found = blocks(large, chunk=chunk, seed=chunk)
        seen.append([(block.index[0], len(block.index), block.nbytes.sum()) for block in found])
    assert seen[0] == seen[1]
    assert 3 <= len(seen[0]) <= 8
    assert sum(length for _, length, _ in seen[0]) == 60_000
    assert sum(nbytes for _, _, nbytes in seen[0]) == pytest.approx(len(large) + 128 * 60_000, rel=0.1)


def test_a_row_with_a_wrong_number_of_fields_is_bad_in_its_place(large):
    found = slots(large)
    assert [index for index, _ in found] == list(range(60_000))
    for index, value in found:
        if index % 9_000 == 8_999:
            assert value == ("csv", "4 fields where there are 3 columns", f"record {index}")
        else:
            assert value["id"] == str(index)
    some = slots(large, first=35_998, types={"id": "int64"})
    assert [value["id"] if isinstance(value, dict) else value[2] for _, value in some[:3]] == [
        35998,
        "record 35999",
        36000,
    ]


def test_bad_rows_at_the_ends_and_nothing_but_bad_rows_keep_their_slots():
    assert [index for index, value in slots(b"a,b\n1\n2,3\n4\n5\n") if isinstance(value, tuple)] == [0, 2, 3]
    assert [value[2] for value in records(b"a,b\n1\n\n2\n3,4,5\n")] == ["record 0", "record 1", "record 2"]
    assert slots(b"a,b\n1\n2\n", first=1) == [(1, ("csv", "1 fields where there are 2 columns", "record 1"))]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"a,b", b"a,b\n", b"\xef\xbb\xbfa,b\n"])
def test_a_file_without_rows_has_no_records(data):
    assert records(data) == []


def test_byte_order_marks_crlf_blank_lines_and_a_missing_line_end_are_read():
    assert records(b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4") == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_values_stay_text_unless_they_are_given_types():
    data = b"id,x,ok,day,when,s\n 007,1.5,true,2024-02-29,2024-02-29 12:30:00,NA\n,NaN,,,,\n"
    assert records(data)[0] == {
        "id": " 007",
        "x": "1.5",
        "ok": "true",
        "day": "2024-02-29",
        "when": "2024-02-29 12:30:00",
        "s": "NA",
    }
    assert records(data)[1] == dict.fromkeys(["id", "x", "ok", "day", "when", "s"], "") | {"x": "NaN"}
    types = {"id": "int64", "x": "float32", "ok": "bool", "day": "date32", "when": pa.timestamp("s")}
    moment = datetime.datetime(2024, 2, 29, 12, 30)  # noqa: DTZ001 - the column has no zone
    assert records(data, types=types) == [
        {"id": 7, "x": 1.5, "ok": True, "day": moment.date(), "when": moment, "s": "NA"},
        {"id": None, "x": None, "ok": None, "day": None, "when": None, "s": ""},
    ]


def test_a_value_that_is_not_of_its_type_costs_its_record_only():
    rows = [[str(number), "x"] for number in range(1000)]
    rows[400] = ["four", "x"]
    rows[401] = ["1", "x", "y"]
    rows[999] = ["9" * 60, "x"]
    found = records(written([("n", "s"), *rows]), types={"n": "int64"})
    assert found[400] == ("csv", "'four' in the column 'n' is no int64", "record 400")
    assert found[401][1] == "3 fields where there are 2 columns"
    assert found[999] == ("csv", f"'{'9' * 40}' in the column 'n' is no int64", "record 999")
    assert found[402] == {"n": 402, "s": "x"}


def test_text_that_is_not_utf8_costs_its_record_only():
    found = records(b"a,b\nx,1\n\xff\xfe,2\ny,3\n", types={"b": "int8"})
    assert found[0] == {"a": "x", "b": 1}
    assert found[1][0] == "decode"
    assert found[1][2] == "record 1"
    assert found[2] == {"a": "y", "b": 3}


def test_columns_are_kept_in_the_order_of_the_file():
    data = b"a,b,c\n1,2,3\n4,5\n"
    assert records(data, columns=("c", "a"), types={"a": "int8", "b": "bool"})[0] == {"a": 1, "c": "3"}
    assert records(b"a,a,b\n1,2,3\n", columns=("b",)) == [{"b": "3"}]


def test_a_file_without_header_is_given_its_names():
    assert slots(b"1,2\n3\n4,5\n", column_names=["x", "y"]) == [
        (0, {"x": "1", "y": "2"}),
        (1, ("csv", "1 fields where there are 2 columns", "record 1")),
        (2, {"x": "4", "y": "5"}),
    ]


def test_a_tsv_has_tabs():
    for url in ("s3://b/a.tsv", "s3://b/a.TSV.gz"):
        data = b"a\tb\n1,5\t2\n"
        assert records(gzip.compress(data) if url.endswith("gz") else data, url) == [{"a": "1,5", "b": "2"}]
    assert records(b"a;b\n1;2\n", "s3://b/a.tsv", delimiter=";") == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b"a,b\n", {"columns": ("c",)}, "no column 'c'; it has 'a', 'b'"),
        (b"a,b\n", {"types": {"c": "int8"}}, "no column 'c'"),
        (b"a,a\n1,2\n", {}, "several columns of the name 'a'"),
        (b"a,b\n", {"types": {"a": "integer"}}, r"types= has 'integer' for the column 'a' .*'int64'"),
        (b"a,b\n", {"types": {"a": pa.struct([("x", pa.int8())])}}, "types= has"),
        (b"a,b\n", {"types": {"a": 3}}, "types= has 3"),
    ],
)
def test_options_that_do_not_go_with_a_file_are_named(data, options, message):
    with pytest.raises(FormatError, match=message) as caught:
        records(data, "https://h/a.csv?sig=verborgen", **options)
    assert "verborgen" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ",,"}, "delimiter= takes one character, not ',,'"),
        ({"delimiter": 3}, "delimiter="),
        ({"column_names": "ab"}, "column_names= takes a list"),
        ({"column_names": []}, "column_names="),
        ({"types": ["int8"]}, "types= takes a dict"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_at_once(options, message):
    with pytest.raises(FormatError, match=message):
        Csv(**options)


def test_a_row_longer_than_a_block_is_read_and_the_rows_around_it(large):
    long = "y" * 3_000_000
    data = large + written([("a", long, "b")]) + written(list(many(100)))
    found = slots(data)
    assert [index for index, _ in found] == list(range(60_101))
    assert found[60_000][1]["text"] == long
    assert found[60_100][1]["id"] == "99"
    assert [index for index, _ in slots(data, first=60_050)] == list(range(60_050, 60_101))


def test_a_quote_that_does_not_end_ends_the_shard_after_the_rows_before_it():
    data = b"a,b\n" + b"1,2\n" * 10 + b'3,"' + b"x" * 40_000_000
    source = MemorySource(data, URL, chunk=1 << 22)
    found = []

    def read():
        for block in Csv().blocks(source, 0, source.size):
            found.extend(block.index.tolist())

    with pytest.raises(CorruptError, match="a quote that does not end") as caught:
        read()
    assert caught.value.position == "record 10"
    assert found == list(range(10))
    assert source.open_streams == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_row_of_the_wrong_length_that_is_not_utf8_costs_its_record_only(large):
    tail = b"1,\xc3\xa9,3\n\xff,5\n7,\xe9\xe9,8\n9,\xe9,10,11\n12,13,\xc3"
    found = slots(large + tail, types={"xs": "string"})
    assert [index for index, _ in found] == list(range(60_005))
    assert found[59_999][1]["id"] == "59999"
    assert found[60_000][1] == {"id": "1", "text": "é", "xs": "3"}
    assert found[60_001][1][1] == "2 fields where there are 3 columns"
    assert found[60_002][1] == ("decode", "its text is not UTF-8", "record 60002")
    assert found[60_003][1][1] == "4 fields where there are 3 columns"
    assert found[60_004][1][2] == "record 60004"


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_compressed_files_are_read_and_damage_ends_them_after_the_rows_before_it(large, compress):
    url = {gzip.compress: "s3://b/a.csv.gz", bz2.compress: "s3://b/a.csv.bz2"}[compress]
    data = compress(large)
    whole = slots(large)
    assert slots(data, url) == whole
    cut = MemorySource(data[: len(data) * 3 // 4], url)
    found = []

    def read():
        for block in Csv().blocks(cut, 0, cut.size):
            found.extend(block.index.tolist())
            values = block.rows.take(slice(0, len(block.rows)))
            for place, index in enumerate(block.index.tolist()):
                assert place in block.rows.bad or values[place] == whole[index][1]

    with pytest.raises(CorruptError, match="cut short"):
        read()
    assert 20_000 < len(found) < 59_000
    assert found == list(range(len(found)))
    assert cut.open_streams == 0


def test_a_failed_read_is_no_damage_of_the_file(large):
    class Broken(MemorySource):
        def stream(self, start=0, stop=None):
            yield self.data[: len(self.data) // 2]
            raise ReadError("503 after 5 attempts")

    source = Broken(large, URL)
    with pytest.raises(ReadError, match="503"):
        list(Csv().blocks(source, 0, source.size))


def test_a_reader_that_is_given_up_closes_its_stream(large):
    source = MemorySource(large, URL, chunk=1 << 12)
    iterator = Csv().blocks(source, 0, source.size)
    assert len(next(iterator).rows)
    iterator.close()
    assert source.open_streams == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@given(place=st.integers(0, 1 << 20), value=st.binary(min_size=1, max_size=3), chunk=st.integers(1, 99))
def test_bytes_changed_anywhere_end_in_slots_or_in_a_named_error(place, value, chunk):
    data = bytearray(written([("a", "b"), *[(str(n), 'q"\n,' * (n % 3)) for n in range(30)]]))
    place %= len(data)
    data[place : place + len(value)] = value
    try:
        found = slots(bytes(data), chunk=chunk)
    except (CorruptError, FormatError):
        return
    assert [index for index, _ in found] == list(range(len(found)))


def test_the_format_is_streamed_uncut_and_goes_to_workers():
    made = Csv(columns=("a",), types={"a": "int8"}, column_names=["a", "b"])
    assert isinstance(made, StreamedFormat)
    assert not made.cuttable(URL)
    assert pickle.loads(pickle.dumps(made)) == made
    block = next(made.blocks(MemorySource(b"1,2\n", URL), 0, 4))
    assert block.seek is None
    assert block.rows.arrow(np.array([0, 0])).equals(pa.record_batch({"a": pa.array([1, 1], pa.int8())}))
