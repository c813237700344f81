"""The readers: a module a library, each with `open_batches(case, place, data, folder)` that returns an `Opened`.

Each is set up as a careful user of that library would, from its own documentation; README.md says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.place import DataSet, Place

Tally = Callable[[Any], tuple[int, int]]
"""Number of records of a batch, and the sum of their ids."""


@dataclass(frozen=True)
class Opened:
    """A reader before its first `iter()`.

    Attributes:
        batches: Gives the batches of one epoch.
        tally: Counts a batch.
        wire: Tells requests and bytes afterwards, where the library knows them.
    """

    batches: Iterable[Any]
    tally: Tally
    wire: Callable[[], dict[str, int]] | None = None


def identity(records: Any) -> Any:
    """The collate function of all: a list of records as it comes."""
    return records


def tally_rows(batch: list[dict[str, Any]]) -> tuple[int, int]:
    """Dicts with an `id`."""
    return len(batch), sum([row["id"] for row in batch])


def tally_keys(batch: list[dict[str, Any]]) -> tuple[int, int]:
    """Samples of a tar, whose key is the id."""
    return len(batch), sum([int(row["__key__"]) for row in batch])


def tally_members(batch: list[dict[str, Any]]) -> tuple[int, int]:
    """Samples of a tar, whose json member, decoded, is the record."""
    return len(batch), sum([row["json"]["id"] for row in batch])


def tally_columns(batch: Any) -> tuple[int, int]:
    """A dict of columns: lists, arrays or tensors."""
    ids = batch["id"]
    return len(ids), int(ids.sum()) if hasattr(ids, "sum") else sum(ids)


def tally_arrow(batch: Any) -> tuple[int, int]:
    """An Arrow record batch or table."""
    return batch.num_rows, int(batch["id"].to_numpy().sum())


def presigned(place: Place, data: DataSet) -> list[str]:
    """URLs of the shards that plain HTTP clients can read."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=place.endpoint, aws_access_key_id=place.access, aws_secret_access_key=place.secret
    )
    return [
        client.generate_presigned_url("get_object", Params={"Bucket": place.bucket, "Key": key}, ExpiresIn=7200)
        for key, _ in data.keys
    ]
