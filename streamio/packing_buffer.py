"""The sequences of a loader's records that wait to be packed: chosen row by row, and read again after a resume.

Where a record's sequences come from, and what is made of a row, is `packing_tokens`' part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from streamio.loader.dataloader import DataLoader
    from streamio.loader.state import State


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    """Tokens that are packed together, and where they are from."""

    record: int
    """Number of the record that it is of, counted from where the iteration began."""
    piece: int
    tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tokens)


class Waiting:
    """One iteration: what was read and is not packed yet, and from where it could be read again.

    Args:
        loader: Where records come from.
        batches: Its iterator.
        pieces: A record's sequences, none longer than a row.
        length: Tokens of a row.
        size: Sequences that are held.
        again: Records to read again, and which pieces of which of them had not been packed.
    """

    def __init__(
        self,
        loader: DataLoader,
        batches: Iterator[Any],
        pieces: Callable[[Any], list[NDArray[np.int64]]],
        *,
        length: int,
        size: int,
        again: tuple[int, Mapping[int, set[int]]],
    ) -> None:
        self._loader = loader
        self._batches = batches
        self._pieces = pieces
        self._length = length
        self._size = size
        self._again, self._wanted = again
        self._marks: deque[tuple[int, State]] = deque()  # of each batch: its first record, and the place before it
        self._arrived = self._read = 0
        self._unread: deque[Any] = deque()  # what is left of the last batch
        self._held: list[_Sequence] = []  # in the order of reading

    def next(self) -> list[NDArray[np.int64]]:
        """The sequences of the next row; none at the end."""
        while len(self._held) < self._size and self._take_record():
            pass
        if not self._held:
            return []
        chosen = [self._held.pop(0)]
        room = self._length - len(chosen[0])
        while fitting := [each for each in self._held if len(each) <= room] if room else []:
            best = max(fitting, key=len)  # the oldest of several
            self._held.remove(best)
            chosen.append(best)
            room -= len(best)
        oldest = self._held[0].record if self._held else self._read
        while len(self._marks) > 1 and self._marks[1][0] <= oldest:
            self._marks.popleft()
        return [sequence.tokens for sequence in chosen]

    def place(self) -> tuple[State, int, list[list[int]]]:
        """A place of the loader, how many records behind it were read, and which pieces of which are waiting."""
        if not self._held and not self._unread:
            return self._loader.state(), 0, []
        first, mark = self._marks[0]
        return mark, self._read - first, [[each.record - first, each.piece] for each in self._held]

    def _take_record(self) -> bool:
        """Put the sequences of the next record into the buffer; False where there is none."""
        while not self._unread:
            mark = self._loader.state()
            try:
                batch = next(self._batches)
            except StopIteration:
                return False
            records = [batch] if self._loader.batch_size is None else _records(batch)
            self._marks.append((self._arrived, mark))
            self._arrived += len(records)
            self._unread.extend(records)
        record, number = self._unread.popleft(), self._read
        self._read += 1
        wanted = self._wanted.get(number) if number < self._again else None
        if number < self._again and wanted is None:
            return True  # packed before the resume
        pieces = enumerate(self._pieces(record))
        self._held += [_Sequence(number, at, piece) for at, piece in pieces if wanted is None or at in wanted]
        return True


def _records(batch: Any) -> list[Any]:
    if not isinstance(batch, (list, tuple)):
        raise TypeError(
            f"pack takes records, and the loader gives batches of type {type(batch).__name__}: leave out output= and "
            "collate_fn=."
        )
    return list(batch)
