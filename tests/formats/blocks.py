"""Flattens the blocks of a streamed format to rows, and checks what holds for every block."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamio.formats.base import Bad, Block


@dataclass(frozen=True)
class Slot:
    """One slot of a block: as `Row`, with the byte to go on from with it, and with what follows it."""

    index: int
    nbytes: int
    value: dict[str, Any] | Bad
    seek: int | None = None
    after: int | None = field(default=None, compare=False)  # not the same for every cut into blocks

    @property
    def told(self) -> tuple[int, int, Any]:
        """All but the places to go on from."""
        return self.index, self.nbytes, self.value


def rows_of(blocks: Iterator[Block]) -> Generator[Slot, None, None]:
    """The slots of all blocks in order; closing it closes the blocks."""
    for block in blocks:
        count = len(block.rows)
        assert count == len(block.index) == len(block.nbytes) > 0
        assert {array.dtype for array in (block.index, block.nbytes, block.seek) if array is not None} == {
            np.dtype(np.int64)
        }
        assert block.seek is None or len(block.seek) == count + 1
        seek = [None] * (count + 1) if block.seek is None else block.seek.tolist()
        values = block.rows.take(slice(0, count))
        for place, value in enumerate(values):
            kept = block.rows.bad.get(place, value)
            yield Slot(int(block.index[place]), int(block.nbytes[place]), kept, seek[place], seek[place + 1])
