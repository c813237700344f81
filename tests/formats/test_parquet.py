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

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import FormatError, ReadError
from streamio.formats.base import Bad, CorruptError, IndexedFormat
from streamio.formats.parquet import Parquet, ParquetRows
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
    return [record for rows in splits for record in rows.take(range(len(rows)))]


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
            assert parquet.load(source, split).take(indices) == expected
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


def test_only_the_wanted_columns_are_read_and_near_ones_together(wide_file):
    size = len(wide_file)
    source = MemorySource(wide_file, URL)
    parquet = Parquet(columns=("c1", "c4"))
    counts = parquet.count(source)
    assert source.reads == [(size - 65536, size)]
    assert counts.records == (1000, 1000, 1000)
    source.reads.clear()
    rows = parquet.load(source, 1)
    assert rows.take([5]) == [{key: wide().to_pylist()[1005][key] for key in ("c1", "c4")}]
    assert len(source.reads) == 2  # 800 KB lie between them
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
    monkeypatch.setattr("streamio.formats.parquet_footer._CACHED", 12 * len(data))
    parquet = Parquet()
    sources = [MemorySource(data, f"s3://bucket/{number}.parquet") for number in range(50)]
    for source in sources:
        parquet.count(source)
        parquet.count(sources[0])
    assert len(sources[0].reads) == 1
    parquet.count(sources[1])
    assert len(sources[1].reads) == 2
    assert len(parquet._footers._footers) <= 12


def test_the_cache_of_footers_is_not_pickled(wide_file):
    parquet = Parquet(columns=("id",))
    before = len(pickle.dumps(parquet))
    parquet.count(MemorySource(wide_file, URL))
    assert len(pickle.dumps(parquet)) == before
    again = pickle.loads(pickle.dumps(parquet))
    assert again == parquet
    assert again.load(MemorySource(wide_file, URL), 2).take([0]) == [{"id": 2000}]
    assert isinstance(parquet, IndexedFormat)


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
        assert parquet.load(source, split).take([0, 9999]) == table.take([first, first + 9999]).to_pylist()


@given(place=st.integers(0, 1 << 20), value=st.integers(0, 255))
def test_a_byte_changed_anywhere_ends_in_records_or_in_a_named_error(place, value):
    data = bytearray(SMALL)
    data[place % len(data)] = value
    try:
        got = records(bytes(data))
    except (CorruptError, FormatError):
        return
    assert all(isinstance(record, (dict, Bad)) for record in got)


SMALL = written(pa.table({"a": list(range(50)), "s": ["x" * (n % 7) for n in range(50)]}), row_group_size=25)


def test_a_damaged_footer_never_ends_the_process():
    """Thousands of changed bytes, in an interpreter of its own, as pyarrow's metadata objects may abort it."""
    program = (
        "import random\n"
        "from formats.test_parquet import SMALL, CorruptError, FormatError, records\n"
        "generator = random.Random(0)\n"
        "for _ in range(1500):\n"
        "    data = bytearray(SMALL)\n"
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
    sender.send(parquet.load(source, 1).take([0]) + again.load(source, 1).take([0]))


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
    assert parquet.load(source, 1).take([0]) == [{"id": 1000}]

    def fail(start, stop):
        raise ReadError("503 after 5 attempts")

    source.read = fail
    with pytest.raises(ReadError, match="503"):
        parquet.load(source, 1)


def test_a_value_that_python_has_no_object_for_is_one_bad_record():
    text = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    data = written(pa.table({"n": [0, 1, 2], "text": text}), row_group_size=2)
    parquet, source = Parquet(), MemorySource(data, URL)
    good, bad = parquet.load(source, 0).take([0, 1])
    assert good == {"n": 0, "text": "good"}
    assert isinstance(bad, Bad)
    assert (bad.reason, bad.position) == ("decode", "record 1")
    assert parquet.load(source, 1).take([0]) == [{"n": 2, "text": "fine"}]
    late = pa.table({"n": [0, 1], "when": pa.array([0, 10**15], pa.timestamp("s"))})
    got = records(written(late))
    assert got[0]["when"] == datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - the column has no zone
    assert isinstance(got[1], Bad)


def test_rows_of_several_batches_are_taken_as_of_one():
    table = pa.table({"n": list(range(10)), "d": pa.array(["x", "y"] * 5).dictionary_encode()})
    batches = table.to_batches(max_chunksize=3)
    rows = ParquetRows(batches, 10, 0)
    assert rows.take([9, 0, 3, 3]) == table.take([9, 0, 3, 3]).to_pylist()
    with pytest.raises(IndexError):
        rows.take([10])


def test_taking_nothing_gives_nothing():
    assert ParquetRows([], 0, 0).take([]) == []


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
