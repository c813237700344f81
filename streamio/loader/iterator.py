"""One pass of a loader over an epoch: keeps every worker busy and hands over batches in the plan's order.

Where a worker dies, it begins anew behind the last batch delivered: what had been asked for or received is made again.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from streamio.errors import StreamioError
from streamio.loader.restart import WorkerDiedError

if TYPE_CHECKING:
    from streamio.loader.pool import Pool
    from streamio.loader.schedule import Schedule
    from streamio.loader.server import Answer

T = TypeVar("T")


class Listener(Protocol):
    """Who is told what happens: the loader."""

    def delivered(self, answer: Answer, *, of_epoch: bool) -> None:
        """An answer has come in its turn; raises to stop the run."""
        ...

    def died(self, death: WorkerDiedError) -> None:
        """A worker is dead, and all are gone; raises where no others are to take their place."""
        ...

    def finished(self) -> None:
        """The epoch has come to its end."""
        ...

    def waited(self, seconds: float) -> None:
        """The consumer has waited."""
        ...


class WorkerTraceback(Exception):  # noqa: N818 - shown as the cause of another error
    """The traceback of an exception in a worker, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class LoaderIterator(Iterator[Any]):
    """An iterator over the batches of one epoch.

    Args:
        begin: Begins behind the last batch delivered; gives where batches are made, and their order.
        workers: How many workers make them.
        listener: Who is told.
        prefetch: Requests that each worker may have open.
        chunk: Batches asked for by one request.
        finish: Applied to each answer that holds a batch, in the training process.
        release: Called with a pool that is not needed any more, and whether something failed.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Pool, Schedule]],
        workers: int,
        listener: Listener,
        *,
        prefetch: int,
        chunk: int,
        finish: Callable[[Answer], None],
        release: Callable[[Pool, bool], None],
    ) -> None:
        self._pool: Pool | None = None
        self._make = begin
        self._workers = workers
        self._listener = listener
        self._prefetch = prefetch
        self._chunk = chunk
        self._finish = finish
        self._release = release
        self._ended = False
        self._surviving(self._begin)

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._pool is None:
            raise StreamioError(
                "This iterator was closed, or a newer one of the same loader took over: a loader has one position, so "
                "only its newest iterator goes on. Make a second DataLoader to read twice at once."
            )
        begun = time.perf_counter()
        try:
            answer = self._surviving(self._next)
        except StopIteration as error:  # of a user's function: it must not pass for the end of the epoch
            self.close(failed=True)
            raise RuntimeError("map, collate_fn or decode raised StopIteration") from error
        except BaseException:
            self.close(failed=True)
            raise
        finally:
            self._listener.waited(time.perf_counter() - begun)
        if answer is None:
            self._ended = True
            self.close()
            self._listener.finished()
            raise StopIteration
        return answer.batch

    def close(self, *, failed: bool = False) -> None:
        """Let go of the workers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._release(pool, failed)

    def __del__(self, _ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_pool", None) is not None and not _ends():  # pools end themselves with the interpreter
            self.close()

    @property
    def running(self) -> bool:
        """Whether it may still deliver."""
        return self._pool is not None

    def _surviving(self, act: Callable[[], T]) -> T:
        """Do something, again where a worker died meanwhile and others may take its place."""
        while True:
            try:
                return act()
            except WorkerDiedError as death:  # noqa: PERF203 - it takes a death to come here
                self.close(failed=True)
                self._listener.died(death)

    def _begin(self) -> None:
        """Begin behind the last batch delivered."""
        self._pool, self._schedule = self._make()
        self._open = [0] * self._workers
        self._answers: list[deque[Answer]] = [deque() for _ in range(self._workers)]
        self._fill()

    def _next(self) -> Answer | None:
        """The next answer that holds a batch; None at the end of the epoch."""
        if self._pool is None:  # a worker has died
            self._begin()
        while (worker := self._schedule.due()) is not None:
            answer = self._answer(worker)
            if answer.failure is not None:
                error, text = answer.failure
                raise error from WorkerTraceback(text)
            of_epoch = self._schedule.accept(answer)
            if answer.ended:
                self._answers[worker].clear()
            # All that can fail comes first: what is told as delivered must reach the loop.
            self._fill()
            if answer.records:
                self._finish(answer)
            self._listener.delivered(answer, of_epoch=of_epoch)
            if answer.records:
                return answer
        return None

    def _answer(self, worker: int) -> Answer:
        answers = self._answers[worker]
        if not answers:
            assert self._pool is not None
            answers.extend(self._pool.receive(worker))
            self._open[worker] -= 1
        return answers.popleft()

    def _fill(self) -> None:
        """Ask every worker for as much as it may have open, by turns, so that the first to be due is asked first."""
        assert self._pool is not None
        asking = True
        while asking:
            asking = False
            for worker in range(len(self._open)):
                if self._open[worker] >= self._prefetch:
                    continue
                tokens: list[int] = []
                while len(tokens) < self._chunk and (token := self._schedule.ask(worker)) is not None:
                    tokens.append(token)
                if tokens:
                    self._pool.request(worker, tokens)
                    self._open[worker] += 1
                    asking = True
