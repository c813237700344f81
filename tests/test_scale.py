"""A hundred thousand objects: what they cost beyond their listing, in time, in memory and at a worker's start."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

OBJECTS = 100_000

MEASURE = """
import gc, json, sys, time
import psutil, s3fs, streamio
url, warm_url, options = json.loads(sys.argv[1])

def bare():
    fs = s3fs.S3FileSystem(**options, use_listings_cache=False, skip_instance_cache=True)
    begun = time.perf_counter()
    found = len(fs.find(url, detail=True))
    return found, time.perf_counter() - begun

def retained():
    gc.collect()
    import pyarrow
    pyarrow.default_memory_pool().release_unused()
    import ctypes
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return psutil.Process().memory_info().rss

def settled():
    dataset = streamio.StreamingDataset(url, storage_options=options, shuffle=True)
    begun = time.perf_counter()
    loader = streamio.DataLoader(dataset, 8)
    dataset.prepare()
    loader.state_dict()
    return dataset, loader, time.perf_counter() - begun

def first_batch(context):
    dataset, loader, _ = settled()
    loader = streamio.DataLoader(dataset, 8, num_workers=1, multiprocessing_context=context)
    begun = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    return time.perf_counter() - begun

if __name__ == "__main__":
    warm = streamio.StreamingDataset(warm_url, storage_options=options)
    warm.prepare()  # what is imported and connected once for good
    before = retained()
    dataset, loader, settle_seconds = settled()
    after = retained()
    shards = len(dataset.prepare().shards)
    del dataset, loader
    found, seconds = bare()
    bare_seconds = min(seconds, bare()[1])
    starts = min(first_batch("spawn") for _ in range(2))
    print(json.dumps({"found": found, "shards": shards, "bare": bare_seconds, "settle": settle_seconds,
                      "bytes": (after - before) / max(1, found), "start": starts}))
"""


def measure(s3: Any, prefix: str, folder: Path) -> dict[str, float]:
    script = folder / "measure.py"
    script.write_text(textwrap.dedent(MEASURE))
    arguments = [sys.executable, str(script), json.dumps([f"{s3.url}/{prefix}", f"{s3.url}/few", s3.storage_options])]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_objects_cost_little_more_than_their_listing(s3: Any, tmp_path: Path) -> None:
    body = "".join(json.dumps({"id": i}) + "\n" for i in range(8)).encode()
    for number in range(10):
        s3.put(f"few/part-{number:05}.jsonl", body)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: s3.put(f"many/year=2026/part-{n:06}-of-{OBJECTS}.jsonl", body), range(OBJECTS)))
    few, many = measure(s3, "few", tmp_path), measure(s3, "many", tmp_path)
    print(f"\nfew: {few}\nmany: {many}")
    assert many["shards"] == OBJECTS
    assert many["settle"] < 1.3 * many["bare"] + 1
    assert many["bytes"] < 300
    assert many["start"] < few["start"] + 1
