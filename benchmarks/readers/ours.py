"""streamio: its `StreamingDataset` in its `DataLoader`, unshuffled, all settings at their defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import obstore  # noqa: F401 - imports are not timed, those that streamio puts off neither
import pyarrow.parquet  # noqa: F401
import s3fs  # noqa: F401

from benchmarks.case import Case
from benchmarks.place import DataSet, Place
from benchmarks.readers import Opened, Tally, tally_arrow, tally_columns, tally_keys, tally_members, tally_rows
from streamio import DataLoader, StreamingDataset


def open_batches(case: Case, place: Place, data: DataSet, folder: Path) -> Opened:
    """List the shards and read the footers (`prepare`), as the peers do when they are constructed."""
    dataset = dataset_of(case, place, data)
    dataset.prepare()
    loader = loader_of(case, dataset)
    return Opened(loader, tally_of(case), lambda: wire(loader))


def dataset_of(case: Case, place: Place, data: DataSet, **options: Any) -> StreamingDataset:
    """The data set of a case, before anything is read; options go to it."""
    if case.format == "tar" and case.kind == "text":
        options["decode"] = {"json": json.loads}
    if engine := case.extra.get("engine"):
        options["engine"] = engine
    url = place.url(f"{data.prefix}*.{case.format}")
    shuffle = bool(case.extra.get("shuffle"))
    return StreamingDataset(url, storage_options=place.storage_options, shuffle=shuffle, **options)


def loader_of(case: Case, dataset: StreamingDataset) -> DataLoader:
    """The loader of a case."""
    output: dict[str, Any] = {} if case.output == "records" else {"output": case.output}
    return DataLoader(dataset, batch_size=case.batch, num_workers=case.workers, **output)


def tally_of(case: Case) -> Tally:
    """How the batches of a case are counted."""
    if case.output != "records":
        return tally_arrow if case.output == "arrow" else tally_columns
    if case.format == "tar":
        return tally_keys if case.kind == "images" else tally_members
    return tally_rows


def wire(loader: DataLoader) -> dict[str, int]:
    """Requests and bytes by streamio's own count, listing and footers included."""
    stats = loader.stats()
    return {"requests": stats.requests, "bytes_read": stats.bytes_read}
