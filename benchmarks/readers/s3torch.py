"""s3torchconnector with a decoder by hand: pyarrow for parquet, tarfile for tar, json for lines.

Batches are made in the data set, shards are dealt to workers: as fast as its few lines can be made.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from s3torchconnector import S3ClientConfig, S3IterableDataset

from benchmarks.case import Case
from benchmarks.place import DataSet, Place
from benchmarks.readers import Opened, identity, tally_keys, tally_members, tally_rows

BUFFER = 1 << 20


class Batches(torch.utils.data.IterableDataset[list[dict[str, Any]]]):
    """Batches over the shards of a worker; only the last one is short."""

    def __init__(self, shards: Iterable[Any], decode: Callable[[Any, int], Iterator[Any]], batch: int) -> None:
        self.shards = shards
        self.decode = decode
        self.batch = batch

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Records of one shard after the other, in lists."""
        rows = itertools.chain.from_iterable(self.decode(shard, self.batch) for shard in self.shards)
        while batch := list(itertools.islice(rows, self.batch)):
            yield batch


class ArrowBatches(Batches):
    """Row batches of parquet as they come: shorter at the ends of shards, which saves making them anew."""

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Batches of one shard after the other."""
        for shard in self.shards:
            yield from self.decode(shard, self.batch)


def open_batches(case: Case, place: Place, data: DataSet, folder: Path) -> Opened:
    """Sequential reader, its default; shards are listed at the first `iter()`."""
    shards = S3IterableDataset.from_prefix(
        place.url(data.prefix),
        region=place.region,
        endpoint=place.endpoint,
        s3client_config=S3ClientConfig(force_path_style=True),
        enable_sharding=True,
    )
    wanted = _Suffix(shards, f".{case.format}")
    tally = tally_rows
    if case.format == "parquet":
        batches: Batches = ArrowBatches(wanted, _parquet, case.batch)
    elif case.format == "tar":
        batches = Batches(wanted, _images if case.kind == "images" else _texts, case.batch)
        tally = tally_keys if case.kind == "images" else tally_members
    else:
        batches = Batches(wanted, _lines, case.batch)
    loader: torch.utils.data.DataLoader[object] = torch.utils.data.DataLoader(
        batches, batch_size=None, num_workers=case.workers, collate_fn=identity
    )
    return Opened(loader, tally)


class _Suffix:
    """The readers of objects whose key ends so (LitData's index lies beside the parquet files)."""

    def __init__(self, shards: S3IterableDataset, suffix: str) -> None:
        self.shards = shards
        self.suffix = suffix

    def __iter__(self) -> Iterator[Any]:
        return (shard for shard in self.shards if shard.key.endswith(self.suffix))


def _parquet(shard: Any, batch: int) -> Iterator[Any]:
    for rows in pq.ParquetFile(shard).iter_batches(batch_size=batch):
        yield rows.to_pylist()


def _lines(shard: Any, batch: int) -> Iterator[Any]:
    return map(json.loads, io.BufferedReader(shard, BUFFER))  # its own lines are read byte by byte


def _images(shard: Any, batch: int) -> Iterator[Any]:
    sample: dict[str, Any] = {}
    for key, extension, value in _members(shard):
        if sample and sample["__key__"] != key:
            yield sample
            sample = {}
        sample["__key__"] = key
        sample[extension] = value
    yield sample


def _texts(shard: Any, batch: int) -> Iterator[Any]:
    for key, extension, value in _members(shard):
        yield {"__key__": key, extension: json.loads(value)}


def _members(shard: Any) -> Iterator[tuple[str, str, bytes]]:
    with tarfile.open(fileobj=shard, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            key, _, extension = member.name.partition(".")
            yield key, extension, file.read()
