"""A shard, and the compact, ordered list of them that ranks and workers share.

The list is held as Arrow columns: some 110 bytes an object, one buffer to send. No I/O here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.storage.faults import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Shard:
    """One object.

    Attributes:
        url: Full URL with its scheme, as fsspec opens it (`s3://bucket/key`, `file:///path`, chained URLs whole).
        size: Length in bytes.
        version: ETag without quotes, generation, or modification time; None where the store tells none.
    """

    url: str
    size: int
    version: str | None = None


class ShardList:
    """Shards sorted by URL, each URL once. Immutable, pickles as one Arrow buffer."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> ShardList:
        """Make a list from shards in any order; of several with one URL the last stays."""
        import pyarrow as pa

        unique = {shard.url: shard for shard in shards}
        ordered = [unique[url] for url in sorted(unique)]
        columns: dict[str, Any] = {
            "url": pa.array([shard.url for shard in ordered], pa.large_string()),
            "size": pa.array([shard.size for shard in ordered], pa.int64()),
            "version": pa.array([shard.version for shard in ordered], pa.large_string()),
        }
        return cls(pa.table(columns))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Shard:
        url, size, version = (column[int(index)].as_py() for column in self._table.columns)
        return Shard(url, size, version)

    def __iter__(self) -> Iterator[Shard]:
        for batch in self._table.to_batches(max_chunksize=4096):
            for url, size, version in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Shard(url, size, version)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Length of each shard in bytes, int64 of shape (len,)."""
        return np.asarray(self._table["size"].to_numpy(), dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over URLs, sizes and versions in order: equal for equal lists on every platform.

        Credentials in URLs are left out: a new signature makes no new data.
        """
        digest = hashlib.sha256()
        for shard in self:
            digest.update(f"{shown(shard.url)}\0{shard.size}\0{shard.version or ''}\n".encode())
        return digest.hexdigest()

    def without_credentials(self) -> ShardList:
        """The same list with nothing in its URLs that must not be stored."""
        return ShardList.of(Shard(shown(shard.url), shard.size, shard.version) for shard in self)

    def to_bytes(self) -> bytes:
        """One zstd-compressed Arrow IPC stream."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, self._table.schema, options=options) as writer:
            writer.write_table(self._table)
        return bytes(sink.getvalue())

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardList:
        """The list that `to_bytes` wrote."""
        import pyarrow as pa

        with pa.ipc.open_stream(data) as reader:
            return cls(reader.read_all())

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardList.from_bytes, (self.to_bytes(),))

    def __repr__(self) -> str:
        return f"ShardList({len(self)} shards, {int(self.sizes.sum())} bytes)"
