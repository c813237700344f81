"""WebDataset: tar through presigned URLs and its own curl opener, batched inside the pipeline.

Its documentation pipes from `aws s3 cp`, which takes most of a CPU second a shard to start: curl is kinder to it.
"""

from __future__ import annotations

from pathlib import Path

import webdataset

from benchmarks.case import Case
from benchmarks.place import DataSet, Place
from benchmarks.readers import Opened, identity, presigned, tally_keys, tally_members


def open_batches(case: Case, place: Place, data: DataSet, folder: Path, buffer: int = 0) -> Opened:
    """Whole shards are dealt to workers; samples are batched there, as its documentation advises.

    `buffer` samples are shuffled, and the shards with them; 0 keeps the order.
    """
    samples = webdataset.WebDataset(presigned(place, data), shardshuffle=len(data.keys) if buffer else False)
    if buffer:
        samples = samples.shuffle(buffer, initial=buffer)
    if case.kind == "text":
        samples = samples.decode()  # json by json.loads
    batches = samples.batched(case.batch, collation_fn=identity)
    loader = webdataset.WebLoader(batches, batch_size=None, num_workers=case.workers)
    return Opened(loader, tally_keys if case.kind == "images" else tally_members)
