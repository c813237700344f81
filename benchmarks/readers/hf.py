"""HF datasets: `load_dataset(..., streaming=True)` in torch's DataLoader; `arrow` is its own fast path, `iter`.

Compressed lines go through presigned URLs: over s3:// it hands options for HTTP on to s3fs, which refuses them.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the data are not on its hub

import datasets

from benchmarks.case import Case
from benchmarks.place import DataSet, Place
from benchmarks.readers import Opened, identity, presigned, tally_arrow, tally_rows


def open_batches(case: Case, place: Place, data: DataSet, folder: Path) -> Opened:
    """All shards by name, so that nothing has to be listed."""
    compressed = case.format == "jsonl.zst"
    stream = datasets.load_dataset(
        "parquet" if case.format == "parquet" else "json",
        data_files=presigned(place, data) if compressed else [place.url(key) for key, _ in data.keys],
        split="train",
        streaming=True,
        storage_options=None if compressed else place.storage_options,
        cache_dir=str(folder / "hf"),
    )
    if case.output == "arrow":
        return Opened(stream.with_format("arrow").iter(batch_size=case.batch), tally_arrow)
    loader: torch.utils.data.DataLoader[object] = torch.utils.data.DataLoader(
        stream, batch_size=case.batch, num_workers=case.workers, collate_fn=identity
    )
    return Opened(loader, tally_rows)
