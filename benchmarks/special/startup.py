"""Start-up: time to the first batch, against a plain GET of the first split by obstore, in fresh processes.

Imports are not timed; listing and footers (`dataset.prepare()`) are timed on their own.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.case import Case, WrongError
from benchmarks.cases import BATCH
from benchmarks.place import DataSet, Place
from benchmarks.special import Plan
from benchmarks.special.resume import SETS
from benchmarks.summary import Summary, markdown, spread


def plan(state: Path) -> Plan:
    """Each set twice: a plain GET, and streamio."""
    before: list[Case] = []
    cases: list[Case] = []
    for kind, form in SETS:
        extra = {"state": str(state / f"startup-{kind}-{form}.json")}
        for what, list_of in (("split", before), ("get", cases), ("streamio", cases)):
            told = {**extra, "what": what}
            name = f"startup/{kind}/{form}/{what}"
            list_of.append(Case(name, "special.startup", "ours", kind, form, batch=BATCH[kind], extra=told))
    return Plan(cases, before)


def measure(case: Case, place: Place, data: DataSet, folder: Path) -> dict[str, Any]:
    """Find out the first split, get it, or read the first batch."""
    path, what = Path(case.extra["state"]), case.extra["what"]
    if what == "split":
        return _split(place, data, path)
    if what == "get":
        return _get(place, json.loads(path.read_text()))
    import obstore.store  # noqa: F401 - importing is counted neither here nor there
    import pyarrow.parquet  # noqa: F401

    import streamio.loader.dataloader  # noqa: F401
    from benchmarks.readers import ours

    dataset = ours.dataset_of(case, place, data)
    began = time.perf_counter()
    dataset.prepare()
    prepared = time.perf_counter()
    batches = iter(ours.loader_of(case, dataset))
    batch = next(batches)
    seconds = time.perf_counter() - prepared  # the iterator is still held: to end it would count
    count, total = ours.tally_of(case)(batch)
    if total != count * (count - 1) // 2:
        raise WrongError(f"sum of ids: {total:,} came, the first {count:,} have {count * (count - 1) // 2:,}")
    return {"records": count, "id_sum": total, "seconds": seconds, "prepare_seconds": prepared - began}


def _split(place: Place, data: DataSet, path: Path) -> dict[str, Any]:
    """A row group of parquet, else the whole first shard (those of lines are too small to be cut)."""
    import obstore

    key, stop = data.keys[0]
    start = 0
    if data.format == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = bytes(obstore.get(place.store(), key).bytes())
        group = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
        stop = start + sum(chunk.total_compressed_size for chunk in chunks)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"key": key, "start": start, "stop": stop}))
    return {"records": 0, "id_sum": 0}


def _get(place: Place, split: dict[str, Any]) -> dict[str, Any]:
    import obstore
    import obstore.store

    start = time.perf_counter()
    got = obstore.get_range(place.store(), split["key"], start=split["start"], end=split["stop"])
    seconds = time.perf_counter() - start
    if len(got) != split["stop"] - split["start"]:
        raise WrongError(f"{len(got):,} bytes came")
    return {"records": 0, "id_sum": 0, "seconds": seconds, "bytes_read": len(got)}


def table(summary: Summary) -> str:
    """The first batch against the plain GET."""
    rows = []
    for case, runs in summary.items():
        name, _, what = case.rpartition("/")
        plain = summary.get(f"{name}/get")
        if what != "streamio" or not plain:
            continue
        ratio = statistics.median(r["seconds"] for r in runs) / statistics.median(r["seconds"] for r in plain)
        rows.append(
            [
                name.removeprefix("startup/"),
                f"{plain[0]['bytes_read'] / 1e6:.1f}",
                spread(plain, "seconds", "{:.3f}"),
                spread(runs, "seconds", "{:.3f}"),
                f"{ratio:.2f}",
                spread(runs, "prepare_seconds", "{:.3f}"),
            ]
        )
    names = [
        "case",
        "first split, MB",
        "plain GET, s",
        "first batch, s",
        "ratio",
        "listing and footers, s (not counted)",
    ]
    return markdown(names, rows)
