"""Small data sets of numbered records for the loader's tests."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BAD = {"parquet": "", "jsonl": '{"id": 1,,}', "tar": ""}


def numbered(sizes: Sequence[int]) -> list[range]:
    """Ids of each shard: 0, 1, 2, ... over all of them."""
    ranges, first = [], 0
    for size in sizes:
        ranges.append(range(first, first + size))
        first += size
    return ranges


def write_parquet(folder: Path, sizes: Sequence[int], rows: int = 7) -> None:
    """One parquet file a size, in row groups of `rows`."""
    for number, ids in enumerate(numbered(sizes)):
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"record {i}" for i in ids]})
        pq.write_table(table, folder / f"p{number:03}.parquet", row_group_size=rows)


def write_lines(folder: Path, sizes: Sequence[int], bad: frozenset[int] = frozenset()) -> None:
    """One jsonl file a size; ids in `bad` are lines that are no JSON."""
    for number, ids in enumerate(numbered(sizes)):
        lines = [BAD["jsonl"] if i in bad else json.dumps({"id": i}) for i in ids]
        (folder / f"p{number:03}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def write_tar(folder: Path, sizes: Sequence[int]) -> None:
    """One tar a size, each record a JSON member."""
    for number, ids in enumerate(numbered(sizes)):
        with tarfile.open(folder / f"p{number:03}.tar", "w") as archive:
            for i in ids:
                data = json.dumps(i).encode()
                member = tarfile.TarInfo(f"{i:06}.json")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def ids_of(batches: Any) -> list[list[int]]:
    """The ids of each batch of records."""
    return [[record["id"] for record in batch] for batch in batches]
