"""The same records in the formats of MosaicML streaming and LitData, by their own writers, in some 32 chunks each."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.data import SHARDS, part, payload
from benchmarks.place import Place

MDS_COLUMNS = {
    "images": {"id": "int", "image": "bytes", "label": "int"},
    "text": {"id": "int", "text": "str", "score": "float64", "lang": "str"},
}


def mds(kind: str, scale: float, folder: Path) -> None:
    """MosaicML's MDS, uncompressed as by default."""
    from streaming import MDSWriter

    size = _chunk(kind, scale)
    with MDSWriter(out=str(folder), columns=MDS_COLUMNS[kind], size_limit=size) as writer:
        for number in range(SHARDS):
            for row in part(kind, scale, number).rows():
                writer.write(row)


def lit(kind: str, scale: float, folder: Path) -> None:
    """LitData's chunks, uncompressed as by default."""
    import litdata

    litdata.optimize(
        fn=functools.partial(_rows, kind, scale),
        inputs=list(range(SHARDS)),
        output_dir=str(folder),
        chunk_bytes=_chunk(kind, scale),
        num_workers=1,  # keeps the order
        reorder_files=False,
    )


def index_parquet(place: Place, prefix: str) -> None:
    """LitData's index.json beside parquet files, which it needs to read them."""
    import litdata

    os.environ.update(place.env)
    litdata.index_parquet_dataset(place.url(prefix.rstrip("/")), num_workers=1)


def _rows(kind: str, scale: float, number: int) -> Iterator[dict[str, Any]]:
    yield from part(kind, scale, number).rows()


def _chunk(kind: str, scale: float) -> int:
    """Bytes of a chunk, so that there are about as many as shards."""
    return int(payload(part(kind, scale, 0)) * 1.05) + 1024


WRITERS: dict[str, Callable[[str, float, Path], None]] = {"mds": mds, "lit": lit}
