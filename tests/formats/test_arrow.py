"""Arrow files and streams: batches found without reading them, projection, dictionaries, and damage that is told."""

from __future__ import annotations

import contextlib
import datetime
import io
import pickle
import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import FormatError, ReadError
from streamio.formats.arrow import Arrow
from streamio.formats.arrow_messages import parse_footer, parse_message
from streamio.formats.base import CorruptError, HintedFormat, IndexedFormat
from tests.formats.memory_source import MemorySource

URL = "s3://bucket/a.arrow"
MAKERS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}
KINDS = pytest.mark.parametrize("kind", ["file", "stream"])


def written(batches, kind, schema=None, **options):
    sink = io.BytesIO()
    with MAKERS[kind](sink, schema or batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def loaded(source, **options):
    arrow = Arrow(**options)
    counts = arrow.count(source)
    splits = [arrow.load(source, split) for split in range(len(counts.records))]
    assert [len(rows) for rows in splits] == list(counts.records)
    return splits


def records(data, **options):
    splits = loaded(MemorySource(data, URL), **options)
    return [record for rows in splits for record in rows.take(slice(0, len(rows)))]


def several(batches=20, rows=100, width=300):
    generator = random.Random(0)
    return [
        pa.record_batch(
            {
                "id": pa.array(range(first, first + rows), pa.int64()),
                "text": [generator.randbytes(width // 2).hex() for _ in range(rows)],
                "list": [list(range(number % 4)) for number in range(rows)],
                "label": pa.array([None, 1.5] * (rows // 2)),
            }
        )
        for first in range(0, batches * rows, rows)
    ]


@pytest.fixture(scope="module")
def batches():
    return several()


SCALARS = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.string(), st.text(max_size=4)),
    (pa.large_binary(), st.binary(max_size=4)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.date32(), st.dates()),
    (pa.null(), st.none()),
]


@st.composite
def columns(draw, depth=2):
    """A type, and values of it."""
    kind, values = draw(st.sampled_from(SCALARS))
    for _ in range(draw(st.integers(0, depth))):
        if draw(st.booleans()):
            kind, values = pa.list_(kind), st.lists(values | st.none(), max_size=3)
        else:
            kind, values = pa.struct([("a", kind)]), st.fixed_dictionaries({"a": values | st.none()})
    return kind, values | st.none()


@given(data=st.data(), kind=st.sampled_from(["file", "stream"]), compression=st.sampled_from([None, "lz4", "zstd"]))
def test_any_batches_come_back_whole_and_in_part(data, kind, compression):
    drawn = data.draw(st.lists(columns(), min_size=1, max_size=4))
    schema = pa.schema([(f"c{number}", kind_) for number, (kind_, _) in enumerate(drawn)])
    lengths = data.draw(st.lists(st.integers(0, 5), max_size=4))
    batches = [
        pa.record_batch(
            [pa.array(data.draw(st.lists(values, min_size=length, max_size=length)), kind_) for kind_, values in drawn],
            schema=schema,
        )
        for length in lengths
    ]
    written_ = written(batches, kind, schema, compression=compression)
    expected = [record for batch in batches for record in batch.to_pylist()]
    assert records(written_) == expected
    some = tuple(data.draw(st.sets(st.sampled_from(schema.names), min_size=1)))
    assert records(written_, columns=some) == [{n: r[n] for n in schema.names if n in some} for r in expected]


@KINDS
def test_batches_are_found_without_their_bodies(kind):
    batches = several(batches=6, rows=200, width=10_000)  # of 2 MB
    data = written(batches, kind)
    source = MemorySource(data, URL)
    counts = Arrow().count(source)
    assert counts.records == (200,) * 6
    assert sum(stop - start for start, stop in source.reads) < 600_000
    assert sum(counts.wire) == pytest.approx(len(data), rel=0.01)
    assert counts.nbytes == pytest.approx((batches[0].nbytes,) * 6, rel=0.01)


def test_the_heads_of_short_batches_come_several_by_one_read():
    data = written(several(batches=300, rows=10), "stream")
    assert len(data) > 1_000_000
    source = MemorySource(data, URL)
    assert Arrow().count(source).records == (10,) * 300
    assert len(source.reads) < 8


@KINDS
def test_one_batch_is_one_read(kind, batches):
    source = MemorySource(written(batches, kind), URL)
    arrow = Arrow()
    counts = arrow.count(source)
    source.reads.clear()
    rows = arrow.load(source, 7)
    assert rows.arrow(slice(0, 100)).equals(batches[7])
    assert rows.take(np.array([3, 1, 3])) == batches[7].take([3, 1, 3]).to_pylist()
    assert [stop - start for start, stop in source.reads] == [counts.wire[7]]
    assert source.reads == arrow.ranges(source, 7)
    assert arrow.names(source) == ["id", "text", "list", "label"]
    again = pickle.loads(pickle.dumps(arrow))
    assert again == arrow
    assert again.load(source, 19).arrow(slice(0, 100)).equals(batches[19])
    assert isinstance(arrow, IndexedFormat)
    assert isinstance(arrow, HintedFormat)


@KINDS
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_only_the_wanted_columns_are_read(kind, compression):
    batches = several(batches=3, rows=1000, width=2000)
    source = MemorySource(written(batches, kind, compression=compression), URL)
    arrow = Arrow(columns=("label", "id"))
    counts = arrow.count(source)
    source.reads.clear()
    rows = arrow.load(source, 1)
    assert rows.arrow(slice(0, 1000)).equals(batches[1].select(["id", "label"]))
    assert sum(stop - start for start, stop in source.reads) == counts.wire[1] < 30_000
    assert source.reads == arrow.ranges(source, 1)
    assert counts.nbytes[1] < 60_000


def test_a_stream_as_hugging_face_saves_it_is_read():
    """A stream of plain batches with a description of the features in the schema, longer than the first read."""
    metadata = {
        b"huggingface": b'{"info": {"features": {"text": {"dtype": "string", "_type": "Value"}}}}' + b" " * 99_999
    }
    schema = pa.schema([("text", pa.string())], metadata)
    batches = [
        pa.record_batch([pa.array([f"{first} {n} " * 50 for n in range(100)])], schema=schema) for first in range(9)
    ]
    data = written(batches, "stream")
    assert records(data) == [record for batch in batches for record in batch.to_pylist()]
    empty = written([], "stream", schema)
    assert records(empty) == []


@pytest.mark.parametrize("end", [b"", b"\0\0\0\0", b"\xff\xff\xff\xff\0\0\0\0"])
def test_a_stream_ends_with_the_file_or_a_mark(end, batches):
    data = written(batches, "stream").removesuffix(b"\xff\xff\xff\xff\0\0\0\0") + end
    assert sum(Arrow().count(MemorySource(data, URL)).records) == 2000


def test_messages_of_the_old_framing_are_read(batches):
    data = written(batches, "stream", use_legacy_format=True)
    assert data[:4] != b"\xff\xff\xff\xff"
    assert records(data) == [record for batch in batches for record in batch.to_pylist()]


@KINDS
def test_dictionaries_are_read_once_and_their_values_come_plain(kind):
    colour = pa.array(["red", "green", None, "blue"] * 50).dictionary_encode()
    batches = [pa.record_batch({"n": pa.array(range(200)), "c": colour, "t": ["x" * 500] * 200}) for _ in range(5)]
    source = MemorySource(written(batches, kind), URL)
    expected = [record["c"] for record in pa.record_batch({"c": colour}).to_pylist()] * 5
    for columns in (None, ("c",), ("n", "c")):
        splits = loaded(source, columns=columns)
        assert [record["c"] for rows in splits for record in rows.take(slice(0, 200))] == expected
    arrow = Arrow()
    arrow.load(source, 0)
    source.reads.clear()
    arrow.load(source, 1)
    assert len(source.reads) == 1
    assert records(source.data.tobytes(), columns=("n",))[7] == {"n": 7}


@pytest.mark.parametrize("delta", [True, False])
def test_dictionaries_that_grow_or_change_between_batches_of_a_stream(delta):
    words = [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]] if delta else [["a", "b"], ["x", "y"], ["p"]]
    batches = [
        pa.record_batch({"w": pa.DictionaryArray.from_arrays(pa.array(range(len(some))), pa.array(some))})
        for some in words
    ]
    data = written(batches, "stream", emit_dictionary_deltas=delta)
    source = MemorySource(data, URL)
    assert [row["w"] for row in records(data)] == [word for some in words for word in some]
    assert [row["w"] for row in Arrow().load(source, 2).take(slice(0, len(words[2])))] == words[2]


def test_a_file_with_dictionaries_that_grow_is_read():
    words = [["a", "b"], ["a", "b", "c"]]
    batches = [
        pa.record_batch({"w": pa.DictionaryArray.from_arrays(pa.array(range(len(some))), pa.array(some))})
        for some in words
    ]
    data = written(batches, "file", emit_dictionary_deltas=True)
    assert [row["w"] for row in records(data)] == ["a", "b", "a", "b", "c"]


def test_columns_of_the_rarer_types_are_read_by_whole_batches():
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    view = pa.array(["a" * 40, "b"], pa.string_view())
    batch = pa.record_batch({"u": union, "v": view, "n": [1, 2]})
    for kind in MAKERS:
        data = written([batch], kind)
        assert records(data, columns=("n",)) == [{"n": 1}, {"n": 2}]
        assert records(data) == batch.to_pylist()


def test_wrong_columns_are_errors_that_name_those_there_are(batches):
    source = MemorySource(written(batches, "file"), "https://h/a.arrow?sig=verborgen")
    with pytest.raises(FormatError, match="no column 'txt'; it has 'id', 'text'") as caught:
        Arrow(columns=("txt",)).count(source)
    assert "verborgen" not in str(caught.value)
    twice = pa.record_batch([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    with pytest.raises(FormatError, match="several columns of the name 'a'"):
        records(written([twice], "stream"))
    assert records(written([twice], "stream"), columns=("b",)) == [{"b": 3}]


def test_what_is_not_read_is_named():
    with pytest.raises(FormatError, match="Feather version 1"):
        Arrow().count(MemorySource(b"FEA1" + bytes(100), URL))
    data = bytearray(written([pa.record_batch({"a": [1]})], "stream"))
    schema = data[8 : 8 + int.from_bytes(data[4:8], "little")]
    assert not parse_message(bytes(schema)).big_endian


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"ARROW1", "it has 6 bytes"),
        (b"x" * 1000, "not an Arrow file or stream"),
        (bytes(1000), "not an Arrow file or stream"),
        (b"ARROW1\0\0" + b"x" * 1000, "cut short"),
        (b"ARROW1\0\0" + b"x" * 100 + (5000).to_bytes(4, "little") + b"ARROW1", "longer than the file"),
        (b"\xff\xff\xff\xff\x10\0\0\0" + b"\xff" * 100, "not an Arrow file or stream"),
    ],
)
def test_what_is_no_arrow_is_corrupt_as_a_whole(data, message):
    with pytest.raises(CorruptError, match=message):
        Arrow().count(MemorySource(data, URL))


@KINDS
def test_a_shard_cut_short_anywhere_is_corrupt_or_ends_between_batches(kind, batches):
    data = written(batches[:3], kind)
    places = {len(data) - 1, len(data) // 2, 10, *range(0, len(data), 977)}
    for place in places:
        source = MemorySource(data[:place], URL)
        try:
            counts = Arrow().count(source)
        except CorruptError:
            continue
        assert kind == "stream"
        assert set(counts.records) <= {100}


def test_bytes_after_the_end_of_a_stream_are_told(batches):
    data = written(batches, "stream")
    with pytest.raises(CorruptError, match="bytes follow the end") as caught:
        Arrow().count(MemorySource(data + data, URL))
    assert caught.value.position == f"byte {len(data) - 8}"


def test_text_that_is_not_utf8_costs_its_record_only():
    text = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    inner = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), text)
    late = pa.array([0, 10**15, 0], pa.timestamp("s"))
    first = pa.record_batch({"n": [0, 1, 2], "x": text, "y": inner, "z": late.slice(0, 1).take([0, 0, 0])})
    second = pa.record_batch({"n": [3, 4, 5], "x": ["a"] * 3, "y": [["b"]] * 3, "z": late})
    for kind in MAKERS:
        for columns in (None, ("n", "y"), ("n", "x")):
            one, two = loaded(MemorySource(written([first, second], kind), URL), columns=columns)
            assert one.take(np.array([2]))[0]["n"] == 2
            assert {place: bad.position for place, bad in one.bad.items()} == {1: "record 1"}
            assert {place: bad.position for place, bad in two.bad.items()} == (
                {1: "record 4"} if columns is None else {}
            )
            assert two.take(np.array([0]))[0]["n"] == 3


@KINDS
def test_offsets_that_point_outside_are_corrupt_even_beside_bad_text(kind):
    text = pa.array([b"\xff" * 9, b"some text", b"more text"], pa.binary()).view(pa.string())
    batch = pa.record_batch({"bad": text, "good": ["some text", "more text", "and more"]})
    data = written([batch], kind)
    offsets = struct.pack("<4i", 0, 9, 18, 26)
    assert data.count(offsets) == 1
    assert len(loaded(MemorySource(data, URL))[0].bad) == 1
    for wrong in (struct.pack("<4i", 0, 9, 1 << 30, 26), struct.pack("<4i", 0, -5, 18, 26)):
        damaged = MemorySource(data.replace(offsets, wrong), URL)
        Arrow().count(damaged)
        with pytest.raises(CorruptError) as caught:
            Arrow().load(damaged, 0)
        assert caught.value.position == "record batch 0"


def mixed():
    colours = pa.array(["red", "green", None, "blue"]).dictionary_encode()
    moments = pa.array([0, 1, None, 3], pa.timestamp("us"))
    return [
        pa.record_batch(
            {"i": [1, 2, 3, 4], "s": ["a", "bc", None, ""], "l": [[1], [], None, [2, 3]], "c": colours, "t": moments}
        )
        for _ in range(3)
    ]


@pytest.mark.parametrize("compression", [None, "lz4"])
@KINDS
@given(seed=st.integers(0, 1 << 30), count=st.integers(1, 3))
def test_bytes_changed_anywhere_end_in_records_or_in_a_named_error(kind, compression, seed, count):
    generator = random.Random(seed)
    data = bytearray(written(mixed(), kind, compression=compression))
    for _ in range(count):
        data[generator.randrange(len(data))] = generator.choice([0, 1, 127, 128, 255, generator.randrange(256)])
    for columns in (None, ("i", "l")):
        try:
            got = records(bytes(data), columns=columns)
        except (CorruptError, FormatError):
            continue
        assert all(isinstance(record, dict) for record in got)


@given(st.binary(max_size=200))
def test_any_bytes_as_metadata_end_in_a_message_or_a_named_error(data):
    for parse in (parse_message, parse_footer):
        with contextlib.suppress(CorruptError):
            parse(data)


@KINDS
def test_a_failed_read_is_no_damage_of_the_file(kind, batches):
    class Broken(MemorySource):
        def read_many(self, ranges):
            raise ReadError("s3://bucket/a.arrow: 503 after 5 attempts")

    with pytest.raises(ReadError, match="503"):
        Arrow().count(Broken(written(batches, kind), URL))


def test_dates_come_as_python_has_them():
    batch = pa.record_batch({"d": pa.array([datetime.date(1960, 1, 1)])})
    assert records(written([batch], "file")) == [{"d": datetime.date(1960, 1, 1)}]
