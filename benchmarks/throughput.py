"""Measures one epoch of one reader: every record is counted and its id summed, and nothing else is done with it."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from benchmarks.case import Case, WrongError, check
from benchmarks.measure import cpu_seconds, peak_rss
from benchmarks.place import DataSet, Place


def measure(case: Case, place: Place, data: DataSet, folder: Path) -> dict[str, Any]:
    """Read the set once.

    Imports are not timed. `setup_seconds` is what a library does before its first `iter()`: indices, listings,
    footers. `seconds` and all rates go from that `iter()` to behind the last batch.
    """
    reader = importlib.import_module(f"benchmarks.readers.{case.reader}")
    began = time.perf_counter()
    opened = reader.open_batches(case, place, data, folder)
    setup = time.perf_counter() - began
    records = id_sum = 0
    first = None
    cpu = cpu_seconds()
    start = time.perf_counter()
    for batch in opened.batches:
        if first is None:
            first = time.perf_counter() - start
        count, total = opened.tally(batch)
        records += count
        id_sum += total
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - cpu
    check(data, records, id_sum)
    if first is None:
        raise WrongError("nothing came")
    return {
        "records": records,
        "id_sum": id_sum,
        "setup_seconds": setup,
        "seconds": seconds,
        "first_seconds": first,
        "records_per_second": records / seconds,
        "mb_per_second": data.payload_bytes / seconds / 1e6,
        "cpu_seconds": cpu,
        "cpu_seconds_per_gb": cpu / data.payload_bytes * 1e9,
        "peak_rss": peak_rss(),
        **(opened.wire() if opened.wire else {}),
    }
