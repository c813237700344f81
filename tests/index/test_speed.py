"""What an index is worth, with numbers: long runs against a real server, and one short one."""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import streamio
from streamio.index.build import build_index
from streamio.plan import IndexedSplits

FRAME = 1 << 20


def lines(first: int, count: int, width: int = 400) -> bytes:
    pick = random.Random(first)
    return b"".join(
        b'{"id": %d, "text": "%s"}\n' % (first + i, pick.randbytes(width // 2).hex().encode()) for i in range(count)
    )


def framed(text: bytes) -> bytes:
    return b"".join(zstandard.compress(text[low : low + FRAME], 1) for low in range(0, len(text), FRAME))


def upload(bucket: Any, shards: int, make: Callable[[int], bytes], suffix: str) -> str:
    def put(number: int) -> None:
        bucket.put(f"data/p{number:05}{suffix}", make(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(shards)))
    return f"{bucket.url}/data"


def resumed(bucket: Any, pack: Callable[[bytes], bytes], suffix: str, records: int) -> tuple[int, int, int]:
    """Read a shard to its middle, and go on in another loader.

    Returns:
        Its size; the bytes that were read up to the first batch; and those beyond what was left, up to the end.
    """
    data = pack(lines(0, records))
    bucket.put(f"data/p{suffix}", data)
    url, options = f"{bucket.url}/data", bucket.storage_options
    build_index(url, storage_options=options, workers=1)

    def loader() -> streamio.DataLoader:
        dataset = streamio.StreamingDataset(url, storage_options=options, prefetch_bytes=4 << 20, engine="fsspec")
        return streamio.DataLoader(dataset, 64)

    begun = loader()
    assert isinstance(begun.dataset.prepare().splits, IndexedSplits)
    state = json.loads(begun.state_dict()["streamio"])
    state["k"] = state["step"] = half = len(begun) // 2
    begun.load_state_dict({"streamio": json.dumps(state)})
    going_on = iter(begun)
    first = next(going_on)
    assert [record["id"] for record in first] == [*range(64 * half, 64 * (half + 1))]
    to_first = begun.stats().bytes_read
    count = len(first) + sum(len(batch) for batch in going_on)
    assert count == records - 64 * half
    return len(data), to_first, begun.stats().bytes_read - len(data) * count // records


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ".jsonl"), (framed, ".jsonl.zst")])
def test_a_resume_in_the_middle_reads_little_of_what_lies_before(s3: Any, pack: Any, suffix: str) -> None:
    size, _, beyond = resumed(s3, pack, suffix, 60_000)
    assert size > 10 << 20
    assert beyond < 6 << 20  # what lies before in the same split, and a little for each split


@pytest.mark.slow
@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ".jsonl"), (framed, ".jsonl.zst")])
def test_a_resume_in_200_mb_reads_under_a_twentieth(s3: Any, pack: Any, suffix: str) -> None:
    size, to_first, beyond = resumed(s3, pack, suffix, 520_000 if suffix == ".jsonl" else 1_000_000)
    print(
        f"{suffix}: {size / 1e6:.0f} MB; {to_first / size:.2%} up to the first batch, "
        f"{beyond / size:.2%} more than was left"
    )
    assert size > 190e6
    assert to_first < size / 20
    assert beyond < size / 20


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.zst"])
def test_indexing_is_faster_than_reading_once_with_one_worker(s3: Any, suffix: str) -> None:
    pack = framed if suffix.endswith("zst") else bytes
    url = upload(s3, 1000, lambda number: pack(lines(number * 2000, 2000, 120)), suffix)
    options = s3.storage_options
    began = time.perf_counter()
    reading = streamio.DataLoader(streamio.StreamingDataset(url, storage_options=options), 256, num_workers=1)
    assert sum(len(batch) for batch in reading) == 2_000_000
    read = time.perf_counter() - began
    built = build_index(url, storage_options=options)
    print(f"{suffix}: read in {read:.1f} s, indexed in {built.seconds:.1f} s")
    assert built.records == 2_000_000
    assert built.seconds < read


@pytest.mark.slow
def test_a_start_from_the_index_is_ten_times_faster_than_from_footers(s3: Any) -> None:
    def shard(number: int) -> bytes:
        sink = io.BytesIO()
        table = pa.table({"id": range(number * 400, number * 400 + 400), "text": ["some text of a record" * 20] * 400})
        pq.write_table(table, sink, row_group_size=100, compression="none", use_dictionary=False)
        return sink.getvalue()

    url = upload(s3, 1000, shard, ".parquet")
    options = s3.storage_options
    build_index(url, storage_options=options)
    seconds: dict[str | None, float] = {}
    for index in (None, "auto", None, "auto"):
        dataset = streamio.StreamingDataset(url, storage_options=options, index=index)
        began = time.perf_counter()
        splits = dataset.prepare().splits
        taken = time.perf_counter() - began
        assert len(splits) == 4000
        seconds[index] = min(taken, seconds.get(index, taken))
    print(f"listing and footers {seconds[None]:.2f} s, from the index {seconds['auto']:.3f} s")
    assert seconds["auto"] * 10 < seconds[None]
