"""A data set class as people write them for NeMo Automodel: only the import of its base class differs.

It reads parquet files from a bucket by row groups, and keeps `[file, row_group, row]` for each worker.
Run it to see it stop half-way and go on from its state:

    python examples/automodel_parquet.py s3://corpus/train --endpoint-url http://127.0.0.1:8333
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

from streamio.distributed import DistributedIterableDataset

logger = logging.getLogger(__name__)


class ParquetTextDataset(DistributedIterableDataset):
    """Rows with a `text`, one pass over all files."""

    def __init__(
        self,
        dataset_name: str,
        url: str,
        storage_options: dict[str, Any] | None = None,
        local_rank: int = 0,
        world_size: int = 1,
        num_workers: int = 8,
        data_status: list[Any] | None = None,
    ) -> None:
        super().__init__(dataset_name, local_rank, world_size, num_workers)
        self.storage_options = storage_options or {}
        self.data_paths = self.get_data_paths(url)
        self.set_data_status(data_status)
        self.set_epoch()

    def get_data_paths(self, url: str) -> list[str]:
        # A client of its own, closed on return: a forked worker that inherits an open one can take its
        # connections away from this process, which then hangs in its next request.
        fs, folder = fsspec.url_to_fs(url, **self.storage_options, skip_instance_cache=True)
        return [fs.unstrip_protocol(path) for path in fs.find(folder) if path.endswith(".parquet")]

    def parse_row(self, row: dict[str, Any]) -> dict[str, Any]:
        if not row["text"]:
            raise ValueError("the text is empty")
        return row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        paths, worker_id = self.get_data_paths_per_worker()
        first_file, first_group, first_row = 0, 0, 0
        status = self._get_worker_data_status(worker_id)
        if status is not None:
            first_file, first_group, first_row = status[0], status[1], status[2] + 1
            logger.info("%s worker %d goes on after %s", self.dataset_name, worker_id, status)
        for file_id, path in enumerate(paths[first_file:], start=first_file):
            try:
                for group_id, row_id, row in self.read(path, first_group, first_row):
                    try:
                        record = self.parse_row(row)
                    except ValueError as error:
                        self._log_drop("row", "%s in row %d of row group %d, %s", error, row_id, group_id, path)
                        continue
                    status = [file_id, group_id, row_id]
                    self._set_worker_resume_data_status(worker_id, status)
                    # In a DataLoader this is a worker: the trainer learns the status from the record.
                    record["data_indexes"] = {"worker_id": worker_id, "data_indexes": status}
                    yield record
            except pa.ArrowInvalid as error:
                self._log_drop("file", "%s: %s", path, error)
            first_group, first_row = 0, 0

    def note_delivered(self, record: dict[str, Any]) -> None:
        """In the trainer's process: keep the status that came with a record, and take it out."""
        indexes = record.pop("data_indexes")
        self._set_worker_resume_data_status(indexes["worker_id"], indexes["data_indexes"])

    def read(self, path: str, first_group: int, first_row: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(row group, row, record) from a position on; called in the worker, which so has its own client."""
        with fsspec.open(path, "rb", **self.storage_options) as file:
            parquet = pq.ParquetFile(file)
            for group_id in range(first_group, parquet.num_row_groups):
                rows = parquet.read_row_group(group_id).to_pylist()
                for row_id in range(first_row, len(rows)):
                    yield group_id, row_id, rows[row_id]
                first_row = 0


def deliver(dataset: ParquetTextDataset, most: int | None = None) -> Iterator[dict[str, Any]]:
    """Records from the workers of a plain DataLoader; `dataset.state_dict()` tells what was delivered."""
    loader = DataLoader(dataset, batch_size=None, num_workers=dataset.num_workers)
    for record in islice(loader, most):
        dataset.note_delivered(record)
        yield record


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", help="folder with parquet files that have a `text` column")
    parser.add_argument("--endpoint-url", help="of an S3 server other than AWS")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=10, help="records before the stop")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    options = {"endpoint_url": arguments.endpoint_url} if arguments.endpoint_url else {}

    dataset = ParquetTextDataset("demo", arguments.url, options, num_workers=arguments.workers)
    for record in deliver(dataset, arguments.stop_after):
        print(json.dumps(record))
    state = json.dumps(dataset.state_dict())  # goes beside the model, in a real run
    print(f"stopped at {state}")

    dataset = ParquetTextDataset("demo", arguments.url, options, num_workers=arguments.workers)
    dataset.load_state_dict(json.loads(state))
    for record in deliver(dataset):
        print(json.dumps(record))
    print("done")


if __name__ == "__main__":
    main()
