"""The floors: what moving the bytes takes, and what decoding them from memory takes, with nothing else around it.

`wire` reads the objects of a set by obstore in byte ranges and throws them away. The decoders get the objects from
memory and count ids like any reader, in one process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Case, WrongError, check
from benchmarks.measure import cpu_seconds, peak_rss
from benchmarks.place import DataSet, Place
from benchmarks.readers import Tally, tally_arrow, tally_rows

MB = 1_000_000


def measure(case: Case, place: Place, data: DataSet, folder: Path) -> dict[str, Any]:
    """One floor, by `case.reader`."""
    if case.reader == "wire":
        return _wire(case, place, data)
    return _decode(case, place, data)


def _wire(case: Case, place: Place, data: DataSet) -> dict[str, Any]:
    """All objects in ranges of `range_mb`, `connections` at once."""
    size, connections = int(case.extra["range_mb"] * MB), int(case.extra["connections"])
    cpu = cpu_seconds()
    start = time.perf_counter()
    got, requests, first = asyncio.run(fetch(place, data.keys, size, connections))
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - cpu
    if got != data.object_bytes:
        raise WrongError(f"{got:,} bytes came, {data.object_bytes:,} are there")
    return {
        "records": data.records,
        "id_sum": data.id_sum,  # of the bytes that came, as their number tells
        "seconds": seconds,
        "first_seconds": first - start,
        "records_per_second": data.records / seconds,
        "mb_per_second": data.payload_bytes / seconds / MB,
        "wire_mb_per_second": data.object_bytes / seconds / MB,
        "cpu_seconds": cpu,
        "cpu_seconds_per_gb": cpu / data.payload_bytes * 1e9,
        "peak_rss": peak_rss(),
        "requests": requests,
        "bytes_read": got,
    }


async def fetch(place: Place, keys: tuple[tuple[str, int], ...], size: int, connections: int) -> tuple[int, int, float]:
    """Read objects in ranges and drop them.

    Returns:
        Bytes, requests, and the time (`perf_counter`) at which the first range had come.
    """
    import obstore

    store = place.store()
    ranges = iter([(key, at, min(at + size, length)) for key, length in keys for at in range(0, length, size)])
    got = requests = 0
    first = 0.0

    async def work() -> None:
        nonlocal got, requests, first
        for key, low, high in ranges:
            data = await obstore.get_range_async(store, key, start=low, end=high)
            first = first or time.perf_counter()
            got += len(data)
            requests += 1

    await asyncio.gather(*(work() for _ in range(connections)))
    return got, requests, first


def _decode(case: Case, place: Place, data: DataSet) -> dict[str, Any]:
    """Load all objects, then time the decoder alone."""
    import obstore

    decode, tally = DECODERS[case.reader]
    store = place.store()
    objects = [bytes(obstore.get(store, key).bytes()) for key, _ in data.keys]
    tally(next(decode(objects[0], case.batch)))  # imports are not timed
    records = id_sum = 0
    cpu = cpu_seconds()
    start = time.perf_counter()
    for content in objects:
        for batch in decode(content, case.batch):
            count, total = tally(batch)
            records += count
            id_sum += total
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - cpu
    check(data, records, id_sum)
    return {
        "records": records,
        "id_sum": id_sum,
        "seconds": seconds,
        "records_per_second": records / seconds,
        "mb_per_second": data.payload_bytes / seconds / MB,
        "cpu_seconds": cpu,
        "cpu_seconds_per_gb": cpu / data.payload_bytes * 1e9,
        "peak_rss": peak_rss(),
    }


def _arrow(content: bytes, batch: int, threads: bool = False) -> Iterator[Any]:
    """Row groups decoded, then cut into batches (slices of the same memory)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(content))
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=threads)
        yield from table.to_batches(max_chunksize=batch)


def _arrow_threads(content: bytes, batch: int) -> Iterator[Any]:
    return _arrow(content, batch, threads=True)


def _pylist(content: bytes, batch: int) -> Iterator[Any]:
    return (rows.to_pylist() for rows in _arrow(content, batch))


def _orjson(content: bytes, batch: int) -> Iterator[Any]:
    import orjson

    lines = content.splitlines()
    for low in range(0, len(lines), batch):
        yield [orjson.loads(line) for line in lines[low : low + batch]]


def _zstd_orjson(content: bytes, batch: int) -> Iterator[Any]:
    import zstandard

    yield from _orjson(zstandard.ZstdDecompressor().decompressobj().decompress(content), batch)


DECODERS: dict[str, tuple[Callable[[bytes, int], Iterator[Any]], Tally]] = {
    "arrow": (_arrow, tally_arrow),
    "arrow-threads": (_arrow_threads, tally_arrow),
    "to_pylist": (_pylist, tally_rows),
    "orjson": (_orjson, tally_rows),
    "zstd+orjson": (_zstd_orjson, tally_rows),
}
