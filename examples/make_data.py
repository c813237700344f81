"""Writes texts with ids into a bucket, for examples and tests: the same ones each time.

python examples/make_data.py s3://corpus/train --format parquet --records 6400
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import fsspec

FORMATS = ("parquet", "jsonl.gz", "tar")
SHARDS = 10

SUBJECTS = ("a rank", "the worker", "my bucket", "this shard", "every step", "one epoch", "the status", "that lane")
VERBS = ("reads", "loses", "finds", "keeps", "follows", "counts", "forgets", "resumes")
TIMES = ("at night", "by itself", "once more", "in order", "without a word", "after the crash", "from the start")


def records(count: int) -> Iterator[dict[str, Any]]:
    """`count` records with ids from 0 on, in order."""
    source = random.Random(42)
    for number in range(count):
        words = (source.choice(part) for part in (SUBJECTS, VERBS, SUBJECTS, TIMES))
        yield {"id": number, "text": f"{' '.join(words)}, {number:06d}."}


def write(url: str, form: str, count: int) -> list[str]:
    """Write `count` records into shards of different sizes below a URL; returns their URLs."""
    rows, urls = list(records(count)), []
    for number, (begin, end) in enumerate(cuts(count)):
        urls.append(f"{url}/part-{number:03d}.{form}")
        with fsspec.open(urls[-1], "wb") as file:
            file.write(ENCODERS[form](rows[begin:end]))
    return urls


def cuts(count: int) -> list[tuple[int, int]]:
    """Shard i has i + 3 parts of the records: real shards are not alike."""
    ends = [0]
    for shard in range(SHARDS):
        ends.append(ends[-1] + shard + 3)
    return [(begin * count // ends[-1], end * count // ends[-1]) for begin, end in pairwise(ends)]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=100)
    return sink.getvalue()


def jsonl_gz(rows: list[dict[str, Any]]) -> bytes:
    return gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode(), mtime=0)


def tar(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for row in rows:
            members = {"json": json.dumps({"id": row["id"]}), "txt": row["text"]}
            for extension, text in members.items():
                member = tarfile.TarInfo(f"{row['id']:08d}.{extension}")
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
    return sink.getvalue()


ENCODERS = {"parquet": parquet, "jsonl.gz": jsonl_gz, "tar": tar}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", help="folder to write into; endpoint and credentials come from the environment")
    parser.add_argument("--format", choices=FORMATS, default="parquet")
    parser.add_argument("--records", type=int, default=6400)
    arguments = parser.parse_args()
    for url in write(arguments.url, arguments.format, arguments.records):
        print(url)


if __name__ == "__main__":
    main()
