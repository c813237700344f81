"""MosaicML streaming: MDS in chunks as large as the other formats' shards, a fresh local folder, all else default."""

from __future__ import annotations

from pathlib import Path

import streaming
import torch

from benchmarks.case import Case
from benchmarks.place import DataSet, Place
from benchmarks.readers import Opened, identity, tally_rows


def open_batches(case: Case, place: Place, data: DataSet, folder: Path) -> Opened:
    """`batch_size` is told to the data set too, which it wants for its order."""
    dataset = streaming.StreamingDataset(
        remote=place.url(data.prefix.rstrip("/")), local=str(folder / "mds"), shuffle=False, batch_size=case.batch
    )
    loader: torch.utils.data.DataLoader[object] = torch.utils.data.DataLoader(
        dataset, batch_size=case.batch, num_workers=case.workers, collate_fn=identity
    )
    return Opened(loader, tally_rows)
