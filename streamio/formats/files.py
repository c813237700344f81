"""Whole files: each shard is one record, its bytes as they are.

Nothing is decompressed or decoded; what becomes of the bytes is the user's.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from streamio.formats.base import Block, Row, Source
from streamio.formats.names import path_of
from streamio.formats.rows import block_of
from streamio.iterators import ended

_SUFFIXES: tuple[str, ...] = ()
_ROW_OVERHEAD = 256  # bytes that the record takes beside those of the file


@dataclass(frozen=True, slots=True)
class Files:
    """Files of any name, one record each: `{"path": "images/0001.png", "bytes": b"..."}`.

    The path is the part of the URL that follows the bucket or host; that of a local file is absolute, that of a file
    in an archive the one within it. It has no suffix of its own: say `format="files"`. `__index__` is 0.
    """

    name = "files"
    suffixes = _SUFFIXES

    def cuttable(self, url: str) -> bool:
        """No: a file is one record."""
        return False

    def blocks(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Generator[Block, None, None]:
        """The file as a block of one row, read whole into memory.

        Args:
            source: The shard.
            start: 0.
            stop: The shard's size.
            first: Not needed here.
            begin: Not needed here: no block tells of a place to go on from.
        """
        with ended(source.stream()) as chunks:
            data = b"".join(chunks)
        yield block_of([Row(0, len(data) + _ROW_OVERHEAD, {"path": path_of(source.url), "bytes": data})])
