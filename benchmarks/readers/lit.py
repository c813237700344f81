"""LitData: its own chunks, or parquet by its index, a fresh cache folder, all else default.

Its obstore call is told to allow http://, which it refuses otherwise; parquet needs spawned workers, as it says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import litdata
import litdata.streaming.downloader
from litdata.streaming.item_loader import ParquetLoader

from benchmarks.case import Case
from benchmarks.place import DataSet, Place
from benchmarks.readers import Opened, tally_rows

litdata.streaming.downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001 - there is no other way


def collate(records: Any) -> Any:
    """A list of records as it comes; of this module, so that spawned workers import the line above."""
    return records


def open_batches(case: Case, place: Place, data: DataSet, folder: Path) -> Opened:
    """Endpoint and credentials as its documentation gives them for S3-compatible stores."""
    options = {
        "endpoint_url": place.endpoint,
        "aws_access_key_id": place.access,
        "aws_secret_access_key": place.secret,
        "region_name": place.region,
    }
    dataset = litdata.StreamingDataset(
        place.url(data.prefix.rstrip("/")),
        cache_dir=str(folder / "lit"),
        item_loader=ParquetLoader() if case.format == "parquet" else None,
        storage_options=options,
        shuffle=False,
    )
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=case.batch,
        num_workers=case.workers,
        collate_fn=collate,
        shuffle=False,
        multiprocessing_context="spawn" if case.workers and case.format == "parquet" else None,
    )
    return Opened(loader, tally_rows)
