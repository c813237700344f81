from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import FormatError
from streamio.formats.base import Block
from streamio.formats.lines import Lines
from streamio.formats.parquet import Parquet
from streamio.formats.rows import Records
from streamio.index import scan
from streamio.index.scan import SPLIT_BYTES, Cutter, Scanner, StoppedError
from tests.formats.memory_source import MemorySource
from tests.index.shards import entry_of, packed


def block(nbytes: Any, seek: Any) -> Block:
    count = len(nbytes)
    places = np.array([*seek, -1], np.int64)
    return Block(Records([{}] * count), np.arange(count), np.array(nbytes, np.int64), places)


@given(
    slots=st.lists(st.tuples(st.integers(1, 3 * SPLIT_BYTES), st.booleans()), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    units=st.lists(st.integers(0, 400), max_size=8),
    packed_=st.booleans(),
)
def test_splits_do_not_depend_on_how_blocks_are_cut(
    slots: list[tuple[int, bool]], cuts: list[int], units: list[int], packed_: bool
) -> None:
    nbytes = [size for size, _ in slots]
    seek = [10 * at if fine else -1 for at, (_, fine) in enumerate(slots)]

    def cut(places: list[int]) -> dict[str, list[int]]:
        cutter = Cutter(1000, packed=packed_, whole=False)
        for number, text in enumerate(sorted({0, *units})):
            cutter.note(100 * number, text)
        ends = sorted({0, len(slots), *(place for place in places if place < len(slots))})
        for low, high in pairwise(ends):
            cutter.add(block(nbytes[low:high], seek[low:high]))
        return cutter.splits()

    found = cut(cuts)
    assert found == cut([])
    assert sum(found["split_records"]) == len(slots)
    assert sum(found["split_nbytes"]) == sum(nbytes)
    assert all(size >= SPLIT_BYTES for size in found["split_nbytes"][:-1])


def test_a_split_is_some_four_mib_decoded() -> None:
    text = b'{"text": "%s"}\n' % (b"x" * 1000)
    entry = entry_of(Lines(), MemorySource(text * 10_000, "s3://b/x.jsonl"))
    assert [round(size / SPLIT_BYTES, 2) for size in entry.splits["split_nbytes"]] == [
        1.0,
        1.0,
        1.0,
        pytest.approx(0.03, abs=0.2),
    ]
    assert entry.splits["split_begin"] == [len(text) * sum(entry.splits["split_records"][:at]) for at in range(4)]


def test_damage_is_one_slot_and_is_told() -> None:
    data = packed(b'{"a": 1}\n' * 50, ".gz")[:-8]
    entry = entry_of(Lines(), MemorySource(data, "s3://b/x.jsonl.gz"))
    assert entry.records == 51
    assert entry.error == f"the gzip member is cut short: the file ends (byte {len(data)})"


def test_a_shard_without_records_has_no_splits() -> None:
    for data in (b"", b"\n \n"):
        entry = entry_of(Lines(), MemorySource(data, "s3://b/x.jsonl"))
        assert (entry.records, entry.splits["split_begin"]) == (0, [])


def test_of_parquet_the_footer_tells() -> None:
    import io

    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"a": range(10)}), sink, row_group_size=4)
    source = MemorySource(sink.getvalue(), "s3://b/x.parquet")
    entry = entry_of(Parquet(), source)
    counts = Parquet().count(source)
    assert tuple(entry.splits["split_records"]) == counts.records == (4, 4, 2)
    assert tuple(entry.splits["split_nbytes"]) == counts.nbytes
    assert tuple(entry.splits["split_wire"]) == counts.wire
    torn = entry_of(Parquet(), MemorySource(sink.getvalue()[:-9], "s3://b/x.parquet"))
    assert torn.records == 0
    assert torn.error is not None


def test_what_has_no_place_in_the_data_set_is_an_error() -> None:
    with pytest.raises(FormatError, match="one JSON array"):
        entry_of(Lines(), MemorySource(b"[1, 2]", "s3://b/x.json"))


def test_credentials_are_not_in_an_entry() -> None:
    entry = entry_of(Lines(), MemorySource(b"{}\n", "ftp://me:secret@host/x.jsonl?token=hush"))
    assert "secret" not in repr(entry)
    assert "hush" not in repr(entry)


def test_a_scan_that_nobody_wants_ends() -> None:
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(StoppedError):
        Scanner(Lines(), "{}").entry(MemorySource(b"{}\n", "s3://b/x.jsonl"), None, stopped)
    assert scan.SPLIT_BYTES == 4 << 20
