"""In which order batches are asked for and delivered: by number, or by turns of the lanes.

No I/O and no processes here: a schedule hands out tokens and is told what came of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from streamio.loader.server import Answer
    from streamio.loader.spec import Start


class Schedule(Protocol):
    """The order of one iteration."""

    def ask(self, worker: int) -> int | None:
        """The next token for a worker; None where it has been asked for all."""
        ...

    def due(self) -> int | None:
        """The worker whose answer comes next; None at the end of the epoch."""
        ...

    def accept(self, answer: Answer) -> bool:
        """Move on behind an answer of the worker that was due; tells whether a batch of the epoch lies behind it."""
        ...


class ByNumber:
    """Batches k0, k0 + 1, ...: worker j makes those with `(k - k0) mod workers == j`.

    Args:
        first: k0.
        stop: Number behind the last batch; None for an endless stream.
        workers: How many workers there are.
    """

    def __init__(self, first: int, stop: int | None, workers: int) -> None:
        self._first, self._stop, self._workers = first, stop, workers
        self._next = [first + worker for worker in range(workers)]
        self._k = first

    def ask(self, worker: int) -> int | None:
        """The worker's next number."""
        k = self._next[worker]
        if self._stop is not None and k >= self._stop:
            return None
        self._next[worker] = k + self._workers
        return k

    def due(self) -> int | None:
        """Numbers are delivered in order."""
        if self._stop is not None and self._k >= self._stop:
            return None
        return (self._k - self._first) % self._workers

    def accept(self, answer: Answer) -> bool:
        """Every answer is a batch of the epoch, even where nothing of it is left on this rank."""
        self._k += 1
        return True


class ByTurns:
    """Lanes take turns; a lane that has ended is passed over.

    Args:
        start: Where the lanes stand.
        workers: How many lanes there are, one a worker.
    """

    def __init__(self, start: Start, workers: int) -> None:
        self._workers = workers
        self.column = start.column
        self.ended = set(start.ended)
        self.cursors: list[Any] = list(start.cursors)

    def ask(self, worker: int) -> int | None:
        """A lane can be asked until it has ended."""
        return None if worker in self.ended else worker

    def due(self) -> int | None:
        """The next lane that has not ended."""
        for step in range(self._workers):
            column = (self.column + step) % self._workers
            if column not in self.ended:
                return column
        return None

    def accept(self, answer: Answer) -> bool:
        """Note where the lane stands now, and go to the next."""
        column = self.due()
        assert column is not None
        self.cursors[column] = answer.cursor
        if answer.more:
            return False
        if answer.ended:
            self.ended.add(column)
        self.column = (column + 1) % self._workers
        return not answer.ended
