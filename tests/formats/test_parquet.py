"""Parquet: counts, projected reads, every codec and type, and damage that is told and never read over."""

from __future__ import annotations

import datetime
import decimal
import io
import multiprocessing
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import FormatError, ReadError
from streamio.formats.base import CorruptError, HintedFormat, IndexedFormat, PiecewiseFormat
from streamio.formats.parquet import PIECE, Parquet
from streamio.formats.parquet_footer import joined
from tests.formats.memory_source import MemorySource

URL = "s3://bucket/a.parquet"


def written(table, **options):
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def records(data, **options):
    source = MemorySource(data, URL)
    parquet = Parquet(**options)
    counts = parquet.count(source)
    splits = [parquet.load(source, split) for split in range(len(counts.records))]
    assert [len(rows) for rows in splits] == list(counts.records)
    return [record for rows in splits for record in rows.take(slice(0, len(rows)))]


def wide(rows=3000, columns=6, width=200):
    """A table of several megabytes of text that does not compress."""
    generator = random.Random(0)
    text = {f"c{number}": [generator.randbytes(width).hex() for _ in range(rows)] for number in range(columns)}
    return pa.table({"id": list(range(rows)), **text})


@pytest.fixture(scope="module")
def wide_file():
    return written(wide(), row_group_size=1000, compression="none", use_dictionary=False)


@given(
    values=st.lists(st.none() | st.text(max_size=5), max_size=40),
    group=st.integers(1, 12),
    data=st.data(),
)
def test_any_records_are_taken_in_the_order_asked_for(values, group, data):
    table = pa.table({"n": list(range(len(values))), "text": pa.array(values, pa.string())})
    source = MemorySource(written(table, row_group_size=group), URL)
    parquet = Parquet()
    counts = parquet.count(source)
    assert sum(counts.records) == len(values)
    first = 0
    for split, count in enumerate(counts.records):
        if count:
            indices = data.draw(st.lists(st.integers(0, count - 1), max_size=8))
            expected = [{"n": first + index, "text": values[first + index]} for index in indices]
            assert parquet.load(source, split).take(np.array(indices, np.int64)) == expected
        first += count


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_codec_and_page_version_is_read(codec, version):
    table = wide(300, 2, 20)
    data = written(table, compression=codec, data_page_version=version, row_group_size=100)
    assert records(data) == table.to_pylist()


def test_nested_dictionary_and_time_columns_come_as_plain_values():
    moment = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.timezone.utc)
    rows = [
        {
            "struct": {"a": 1, "b": {"c": "x"}},
            "list": [[1, None], [], None],
            "map": [("k", 1), ("l", None)],
            "dictionary": "red",
            "time": moment,
            "date": datetime.date(1960, 1, 1),
            "decimal": decimal.Decimal("12.34"),
            "bytes": b"\x00\xff",
            "bool": True,
            "float": 0.1,
        },
        dict.fromkeys(["struct", "list", "map", "dictionary", "time", "date", "decimal", "bytes", "bool", "float"]),
    ]
    schema = pa.schema(
        [
            ("struct", pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])),
            ("list", pa.list_(pa.list_(pa.int8()))),
            ("map", pa.map_(pa.string(), pa.int32())),
            ("dictionary", pa.dictionary(pa.int8(), pa.string())),
            ("time", pa.timestamp("us", "UTC")),
            ("date", pa.date32()),
            ("decimal", pa.decimal128(6, 2)),
            ("bytes", pa.binary()),
            ("bool", pa.bool_()),
            ("float", pa.float64()),
        ]
    )
    table = pa.Table.from_pylist(rows * 3, schema=schema)
    got = records(written(table))
    assert got == table.to_pylist()
    assert got[0]["dictionary"] == "red"
    assert got[1]["dictionary"] is None


def test_nested_columns_are_selected_by_path_or_whole():
    rows = [{"a": {"b": 1, "c": {"d": 2, "e": [{"f": 3}]}}, "z": 4}]
    data = written(pa.Table.from_pylist(rows))
    assert records(data, columns=("a.b",)) == [{"a": {"b": 1}}]
    assert records(data, columns=("a.c", "z")) == [{"a": {"c": {"d": 2, "e": [{"f": 3}]}}, "z": 4}]
    assert records(data, columns=("a",)) == [{"a": rows[0]["a"]}]


def test_keys_come_in_the_files_order_whatever_is_asked_for_first():
    table = pa.table({"a": [1], "m": [{"x": 2, "y": 3}], "p.q": [4]})
    (record,) = records(written(table), columns=("p.q", "m.y", "a"))
    assert list(record.items()) == [("a", 1), ("m", {"y": 3}), ("p.q", 4)]


def test_a_column_with_a_dot_in_its_name_is_selected():
    data = written(pa.table({"a.b": [1], "a.c": [2]}))
    assert records(data, columns=("a.c",)) == [{"a.c": 2}]


def test_an_unknown_column_is_an_error_that_names_those_there_are():
    source = MemorySource(written(pa.table({"text": ["x"], "id": [1]})), URL)
    with pytest.raises(FormatError, match="no column 'txet'; it has 'text', 'id'") as caught:
        Parquet(columns=("id", "txet")).count(source)
    assert URL in str(caught.value)


def test_two_columns_of_one_name_are_an_error_unless_left_out():
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    with pytest.raises(FormatError, match="several columns of the name 'a'"):
        records(written(table))
    assert records(written(table), columns=("b",)) == [{"b": 3}]


def test_empty_row_groups_and_files_without_records_are_read():
    schema = pa.schema([("a", pa.int64())])
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema) as writer:
        for rows in ([1, 2], [], [3], []):
            writer.write_table(pa.table({"a": pa.array(rows, pa.int64())}))
    source = MemorySource(buffer.getvalue(), URL)
    counts = Parquet().count(source)
    assert sum(counts.records) == 3
    assert 0 in counts.records
    assert records(buffer.getvalue()) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert records(written(schema.empty_table())) == []


def test_index_columns_of_pandas_stay_plain_columns():
    metadata = {b"pandas": b'{"index_columns": ["i"], "columns": [], "column_indexes": []}'}
    table = pa.table({"a": [1], "i": ["x"]}).replace_schema_metadata(metadata)
    assert records(written(table)) == [{"a": 1, "i": "x"}]


def test_a_small_file_is_read_once_and_whole():
    data = written(pa.table({"a": list(range(100))}), row_group_size=10)
    source = MemorySource(data, URL)
    parquet = Parquet()
    parquet.count(source)
    for split in range(10):
        parquet.load(source, split)
    assert source.reads == [(0, len(data))]
    assert parquet.ranges(source, 3) == []


def test_only_the_wanted_columns_are_read_and_near_ones_together(wide_file):
    size = len(wide_file)
    source = MemorySource(wide_file, URL)
    parquet = Parquet(columns=("c1", "c4"))
    counts = parquet.count(source)
    assert source.reads == [(size - 65536, size)]
    assert counts.records == (1000, 1000, 1000)
    source.reads.clear()
    rows = parquet.load(source, 1)
    assert rows.take(np.array([5])) == [{key: wide().to_pylist()[1005][key] for key in ("c1", "c4")}]
    assert len(source.reads) == 2  # 800 KB lie between them
    assert source.reads == parquet.ranges(source, 1)
    assert sum(stop - start for start, stop in source.reads) == counts.wire[1]
    assert counts.wire[1] == pytest.approx(2 * 400_000, rel=0.05)
    assert counts.nbytes[1] == pytest.approx(2 * 400_000, rel=0.05)
    source.reads.clear()
    Parquet().load(source, 0)
    assert len(source.reads) == 2  # the footer, and all columns at once


def test_a_footer_longer_than_the_first_read_takes_a_second_one():
    table = pa.table({f"column_{number}": [number] for number in range(1000)})
    data = written(table)
    source = MemorySource(data, URL)
    assert Parquet(columns=("column_7",)).count(source).records == (1,)
    length = int.from_bytes(data[-8:-4], "little") + 8
    assert length > 65536
    assert source.reads == [(len(data) - 65536, len(data)), (len(data) - length, len(data) - 65536)]
    assert records(data, columns=("column_7",)) == [{"column_7": 7}]


def test_the_least_used_footers_leave_the_cache(monkeypatch):
    data = written(pa.table({"a": [1]}))
    parquet = Parquet()
    monkeypatch.setattr(parquet._footers, "_most", 12 * len(data))
    sources = [MemorySource(data, f"s3://bucket/{number}.parquet") for number in range(50)]
    for source in sources:
        parquet.count(source)
        parquet.count(sources[0])
    assert len(sources[0].reads) == 1
    parquet.count(sources[1])
    assert len(sources[1].reads) == 2
    assert len(parquet._footers) <= 12


def test_the_cache_of_footers_is_not_pickled(wide_file):
    parquet = Parquet(columns=("id",))
    before = len(pickle.dumps(parquet))
    parquet.count(MemorySource(wide_file, URL))
    assert len(pickle.dumps(parquet)) == before
    again = pickle.loads(pickle.dumps(parquet))
    assert again == parquet
    assert again.load(MemorySource(wide_file, URL), 2).take(np.array([0])) == [{"id": 2000}]
    assert isinstance(parquet, IndexedFormat)
    assert isinstance(parquet, HintedFormat)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"PAR1", "it has 4 bytes"),
        (b"x" * 100_000, "does not end in PAR1"),
        (b"PAR1" + b"x" * 100 + (90).to_bytes(4, "little") + b"PARE", "encrypted"),
        (b"PAR1" + b"x" * 100 + (5000).to_bytes(4, "little") + b"PAR1", "longer than the file"),
        (b"PAR1" + b"x" * 100 + (90).to_bytes(4, "little") + b"PAR1", "can't be decoded"),
    ],
)
def test_what_is_no_parquet_file_is_corrupt_as_a_whole(data, message):
    with pytest.raises(CorruptError, match=message) as caught:
        Parquet().count(MemorySource(data, URL))
    assert caught.value.position == ""


def test_a_file_cut_short_is_corrupt(wide_file):
    with pytest.raises(CorruptError, match="cut short"):
        Parquet().count(MemorySource(wide_file[:-1], URL))


def test_a_footer_that_points_outside_the_file_is_corrupt(wide_file):
    """The front of the file is gone, its footer is whole."""
    source = MemorySource(wide_file[2_000_000:], URL)
    with pytest.raises(CorruptError, match="outside the file") as caught:
        Parquet().load(source, 2)
    assert caught.value.position == "row group 2"


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none"])
def test_damage_in_a_row_group_is_told_and_leaves_the_others_whole(codec):
    table = pa.table({"a": [f"{n:x}" * 20 for n in range(30_000)]})
    data = bytearray(
        written(table, row_group_size=10_000, compression=codec, write_page_checksum=True, use_dictionary=False)
    )
    chunk = pq.read_metadata(io.BytesIO(bytes(data))).row_group(1).column(0)
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 0xFF
    source = MemorySource(bytes(data), URL)
    parquet = Parquet()
    with pytest.raises(CorruptError) as caught:
        parquet.load(source, 1)
    assert caught.value.position == "row group 1"
    assert "\n" not in str(caught.value)
    for split in (0, 2):
        first = split * 10_000
        assert parquet.load(source, split).take(np.array([0, 9999])) == table.take([first, first + 9999]).to_pylist()


@given(place=st.integers(0, 1 << 20), value=st.integers(0, 255))
def test_a_byte_changed_anywhere_ends_in_records_or_in_a_named_error(place, value):
    data = bytearray(SMALL)
    data[place % len(data)] = value
    try:
        got = records(bytes(data))
    except (CorruptError, FormatError):
        return
    assert all(isinstance(record, dict) for record in got)


SMALL = written(pa.table({"a": list(range(50)), "s": ["x" * (n % 7) for n in range(50)]}), row_group_size=25)


MEDIUM = written(
    pa.table({"a": np.arange(9_000), "s": ["x" * (n % 7) for n in range(9_000)]}),
    row_group_size=3_000,
    compression=None,
)


@pytest.mark.parametrize(("name", "times"), [("SMALL", 1500), ("MEDIUM", 400)])
def test_a_damaged_footer_never_ends_the_process(name, times):
    """Thousands of changed bytes, in an interpreter of its own, as pyarrow's metadata objects may abort it."""
    program = (
        "import random\n"
        "from formats.test_parquet import SMALL, MEDIUM, CorruptError, FormatError, records\n"
        "generator = random.Random(0)\n"
        f"for _ in range({times}):\n"
        f"    data = bytearray({name})\n"
        "    data[generator.randrange(len(data) - 700, len(data))] = generator.randrange(256)\n"
        "    try:\n"
        "        records(bytes(data))\n"
        "    except (CorruptError, FormatError):\n"
        "        pass\n"
        "print('alive')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "alive\n", done.stderr


def test_a_forked_process_reads_on_with_what_its_parent_has_counted(wide_file):
    parquet, source = Parquet(columns=("id",)), MemorySource(wide_file, URL)
    parquet.count(source)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=load_in_child, args=(sender, parquet, source))
    process.start()
    assert receiver.poll(30)
    assert receiver.recv() == [{"id": 1000}, {"id": 1000}]
    process.join(30)
    assert process.exitcode == 0


def load_in_child(sender, parquet, source):
    again = Parquet(columns=("id",))
    again.count(source)
    sender.send(parquet.load(source, 1).take(np.array([0])) + again.load(source, 1).take(np.array([0])))


def test_a_row_group_of_another_length_than_its_footer_says_is_corrupt():
    """The footer of a file of twelve records on the pages of one of ten."""
    ten = written(pa.table({"a": pa.array(range(10), pa.int64())}), compression="none", use_dictionary=False)
    metadata = pq.read_metadata(io.BytesIO(ten))
    changed = ten.replace(b"\x16\x14", b"\x16\x18")  # thrift's zigzag of 10 and of 12
    assert pq.read_metadata(io.BytesIO(changed)).row_group(0).num_rows == 12 != metadata.num_rows
    with pytest.raises(CorruptError) as caught:
        Parquet().load(MemorySource(changed, URL), 0)
    assert caught.value.position == "row group 0"


def test_a_failed_read_is_no_damage_of_the_file(wide_file):
    class Broken(MemorySource):
        def read_many(self, ranges):
            raise ReadError("s3://bucket/a.parquet: 503 after 5 attempts")

    with pytest.raises(ReadError, match="503"):
        Parquet().load(Broken(wide_file, URL), 0)


def test_a_failed_read_under_pyarrow_is_no_damage_of_the_file(wide_file, monkeypatch):
    """Where pyarrow asks for bytes outside the ranges that the footer tells, they are read, errors and all."""
    monkeypatch.setattr("streamio.formats.parquet.joined", lambda chunks: [])
    source = MemorySource(wide_file, URL)
    parquet = Parquet(columns=("id",))
    assert parquet.load(source, 1).take(np.array([0])) == [{"id": 1000}]

    def fail(start, stop):
        raise ReadError("503 after 5 attempts")

    source.read = fail
    with pytest.raises(ReadError, match="503"):
        parquet.load(source, 1)


def test_a_value_that_python_has_no_object_for_is_one_bad_record():
    text = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    data = written(pa.table({"n": [0, 1, 2], "text": text}), row_group_size=2)
    parquet, source = Parquet(), MemorySource(data, URL)
    rows = parquet.load(source, 0)
    assert rows.take(np.array([0])) == [{"n": 0, "text": "good"}]
    assert list(rows.bad) == [1]
    assert (rows.bad[1].reason, rows.bad[1].position) == ("decode", "record 1")
    assert parquet.load(source, 1).take(slice(0, 1)) == [{"n": 2, "text": "fine"}]
    assert not parquet.load(source, 1).bad


@pytest.fixture(scope="module")
def large_file():
    """Five row groups: the third takes 100 MB, of which a little text, bytes that compress and some that do not."""
    generator = np.random.default_rng(0)

    def rows(count):
        return pa.table(
            {
                "id": np.arange(count),
                "image": pa.array([generator.bytes(20_000) for _ in range(count)], pa.binary()),
                "zeros": pa.array([bytes(200)] * count, pa.binary()),
                "text": pa.array([f"number {number}" * (number % 5) for number in range(count)], pa.string()),
                "list": pa.array([list(range(number % 4)) for number in range(count)], pa.list_(pa.int64())),
            }
        )

    buffer = io.BytesIO()
    groups = [rows(count) for count in (3, 0, 5000, 1, 20)]
    with pq.ParquetWriter(
        buffer, groups[0].schema, write_page_checksum=True, use_dictionary=["zeros", "text"]
    ) as writer:
        for group in groups:
            writer.write_table(group)
    return buffer.getvalue(), groups


def test_pieces_are_the_rows_that_load_gives(large_file):
    data, groups = large_file
    parquet, source = Parquet(), MemorySource(data, URL, chunk=1 << 20)
    first = 0
    for split, records in enumerate(parquet.count(source).records):
        pieces = list(parquet.pieces(source, split))
        found = [piece.arrow(slice(0, len(piece))) for piece in pieces]
        assert pa.Table.from_batches(found, groups[0].schema).equals(groups[split])
        if records:
            whole = parquet.load(source, split)
            assert pa.Table.from_batches([whole.arrow(slice(0, records))]).equals(groups[split])
        first += records
        assert source.open_streams == 0
    assert isinstance(parquet, PiecewiseFormat)


def test_pieces_are_cut_by_what_the_footer_tells(large_file):
    data, _ = large_file
    parquet = Parquet()
    nbytes = parquet.count(MemorySource(data, URL)).nbytes[2]
    for chunk in (1 << 12, 1 << 23):
        lengths = [len(piece) for piece in parquet.pieces(MemorySource(data, URL, chunk=chunk, seed=chunk), 2)]
        rows = 5000 * PIECE // nbytes
        assert lengths == [rows] * (5000 // rows) + [5000 % rows]
    assert len(lengths) > 2


def test_pieces_of_some_columns_read_no_others(large_file):
    data, groups = large_file
    parquet = Parquet(columns=("id", "image"))
    source = Metered(data, URL, chunk=1 << 20)
    pieces = list(parquet.pieces(source, 2))
    assert pieces[0].take(slice(7, 8)) == groups[2].select(["id", "image"]).slice(7, 1).to_pylist()
    assert sum(map(len, pieces)) == 5000
    assert source.streamed == pytest.approx(100_000_000, rel=0.05)


class Metered(MemorySource):
    """Counts the bytes of its streams."""

    streamed = 0

    def stream(self, start=0, stop=None):
        for chunk in super().stream(start, stop):
            self.streamed += len(chunk)
            yield chunk


def test_pieces_hold_few_multiples_of_a_piece(large_file):
    data, _ = large_file
    before = pa.total_allocated_bytes()
    most = 0
    for _ in Parquet().pieces(MemorySource(data, URL, chunk=1 << 20), 2):
        most = max(most, pa.total_allocated_bytes() - before)
    assert PIECE / 2 < most < 3 * PIECE


def test_nothing_is_kept_of_a_row_group_that_is_let_go(large_file):
    before = pa.total_allocated_bytes()
    assert len(Parquet().load(MemorySource(large_file[0], URL), 2)) == 5000  # reads the footer, too
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_pieces_before_a_damaged_page_come_and_then_its_error(large_file):
    data, _ = large_file
    damaged = bytearray(data)
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(2).column(1)
    damaged[chunk.data_page_offset + chunk.total_compressed_size * 2 // 3] ^= 0xFF
    source = MemorySource(bytes(damaged), URL, chunk=1 << 20)
    records = []

    def read():
        for piece in Parquet().pieces(source, 2):
            records.extend(piece.take(slice(0, len(piece))))

    with pytest.raises(CorruptError) as caught:
        read()
    assert caught.value.position == "row group 2"
    assert 2000 < len(records) < 3400
    assert [record["id"] for record in records] == list(range(len(records)))
    assert source.open_streams == 0


def test_pieces_that_are_given_up_close_their_streams(large_file):
    source = MemorySource(large_file[0], URL, chunk=1 << 20)
    pieces = Parquet().pieces(source, 2)
    assert len(next(pieces))
    assert source.open_streams > 0
    pieces.close()
    assert source.open_streams == 0


def test_a_failed_read_of_a_piece_is_no_damage_of_the_file(large_file):
    class Broken(MemorySource):
        def stream(self, start=0, stop=None):
            yield self.data[start : start + 3_000_000]
            raise ReadError("503 after 5 attempts")

    with pytest.raises(ReadError, match="503"):
        list(Parquet().pieces(Broken(large_file[0], URL), 2))


def test_gaps_are_read_only_where_they_are_small_against_what_is_wanted():
    kib, mib = 1 << 10, 1 << 20

    def chunks(*bounds):
        return list(bounds)

    assert joined(chunks((0, kib), (4 * kib, 5 * kib))) == [(0, 5 * kib)]
    assert joined(chunks((0, kib), (6 * kib, 7 * kib))) == [(0, kib), (6 * kib, 7 * kib)]
    assert joined(chunks((0, 4 * mib), (4 * mib + 200 * kib, 5 * mib))) == [(0, 5 * mib)]
    assert joined(chunks((0, 50 * mib), (51 * mib, 52 * mib))) == [(0, 50 * mib), (51 * mib, 52 * mib)]
    assert joined(chunks((5, 9), (0, 5), (9, 9))) == [(0, 9)]
    far = chunks(*((24 * kib * n, 24 * kib * n + 20 * kib) for n in range(20)))  # 400 KiB in all
    ranges = joined(far)
    assert len(ranges) == 15
    assert sum(stop - start for start, stop in ranges) <= 400 * kib + 20 * kib
    assert joined([]) == []


def test_an_encrypted_file_is_corrupt_and_says_so():
    import pyarrow.parquet.encryption as pe

    class Kms(pe.KmsClient):
        def wrap_key(self, key_bytes, master_key_identifier):
            return key_bytes.hex()

        def unwrap_key(self, wrapped_key, master_key_identifier):
            return bytes.fromhex(wrapped_key)

    factory = pe.CryptoFactory(lambda _: Kms())
    for plaintext_footer in (False, True):
        settings = pe.EncryptionConfiguration(
            footer_key="f", column_keys={"c": ["a"]}, plaintext_footer=plaintext_footer
        )
        properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
        table = pa.table({"a": [1, 2], "b": [3, 4]})
        source = MemorySource(written(table, encryption_properties=properties), URL)
        with pytest.raises(CorruptError, match="crypt"):
            Parquet().load(source, 0)
        with pytest.raises(CorruptError, match="crypt"):
            Parquet().count(source)


@pytest.mark.parametrize("columns", [None, ("nope",)])
def test_errors_about_columns_show_no_signature_of_the_url(columns):
    buffer = io.BytesIO()
    names = ["a", "a"] if columns is None else ["a"]
    pq.write_table(pa.table([pa.array([1])] * len(names), names=names), buffer)
    source = MemorySource(buffer.getvalue(), "https://h/x.parquet?sig=verborgen")
    with pytest.raises(FormatError, match=r"https://h/x\.parquet") as caught:
        Parquet(columns=columns).count(source)
    assert "verborgen" not in str(caught.value)


def test_a_row_group_in_one_piece_is_decoded_without_reads_of_a_python_file(wide_file, monkeypatch):
    """Each of these would wait for the interpreter while another thread runs in it."""
    source = MemorySource(wide_file, URL)
    parquet = Parquet()
    parquet.count(source)
    monkeypatch.setattr("streamio.formats.sparsefile.SparseFile.read_buffer", None)
    assert len(parquet.load(source, 1)) == 1000
