"""Files for pyarrow of which only some bytes are at hand."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.formats.sparsefile import ChunkFile, SparseFile, placed
from tests.formats.memory_source import MemorySource

DATA = random.Random(0).randbytes(5000)
URL = "s3://bucket/a.parquet"


@pytest.mark.parametrize("make", [bytes, memoryview, lambda part: np.frombuffer(part, np.uint8).data])
def test_placed_bytes_lie_where_they_lie_in_the_file(make):
    buffer = placed(make(DATA[3000:4000]), 3000)
    assert buffer is not None
    assert buffer.size == 4000
    file = pa.BufferReader(buffer)
    file.seek(3100)
    assert file.read(50) == DATA[3100:3150]
    file.seek(3990)
    assert file.read(50) == DATA[3990:4000]


def test_bytes_that_lie_too_low_are_not_placed():
    assert placed(DATA, 1 << 62) is None
    assert placed(b"", 10) is None


@given(
    ranges=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), max_size=4),
    reads=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 900)), max_size=20),
    seed=st.integers(0, 99),
)
def test_any_reads_of_any_file_give_its_bytes(ranges, reads, seed):
    bounds = [(min(pair), max(pair)) for pair in ranges]
    source = MemorySource(DATA, URL, chunk=400, seed=seed)
    sparse = SparseFile(source)
    for start, stop in bounds:
        sparse.add(start, DATA[start:stop])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamio.formats.sparsefile._AT_ONCE", 600)
        chunks = ChunkFile(source, bounds)
    for file in (sparse, chunks):
        for start, count in reads:
            file.seek(start)
            assert file.read_buffer(count).to_pybytes() == DATA[start : start + count]
            assert file.tell() == max(start, min(start + count, 5000))
        for start, stop in bounds:  # in order, as pyarrow reads a column chunk
            for place in range(start, stop, 333):
                file.seek(place)
                assert file.read(min(333, stop - place)) == DATA[place : min(place + 333, stop)]
        file.close()
    assert source.open_streams == 0


def test_a_range_that_is_read_in_order_comes_by_one_stream(monkeypatch):
    monkeypatch.setattr("streamio.formats.sparsefile._AT_ONCE", 100)
    source = MemorySource(DATA, URL, chunk=700)
    file = ChunkFile(source, [(0, 50), (1000, 4000), (4000, 5000)])
    assert source.reads == [(0, 50)]
    for place in range(1000, 4000, 100):
        file.seek(place)
        assert file.read(100) == DATA[place : place + 100]
        file.seek(4000 + place // 10)
    assert source.reads == [(0, 50)]
    file.seek(1500)
    assert file.read(100) == DATA[1500:1600]  # back again
    assert source.reads == [(0, 50), (1500, 1600)]
    file.close()
    assert source.open_streams == 0
