"""A few daemon threads that load splits ahead of the consumer.

The standard library's executor is joined at interpreter exit before anything could tell its threads to stop,
so a read in
flight would hold up the exit; these threads are told, and then let go.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Threads:
    """Runs jobs in the order they are given.

    Args:
        count: Number of threads, started with the first job.
        name: Prefix of their names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run a job; its result or exception comes through the future."""
        future: Future[T] = Future()
        if self._closed:
            future.cancel()
            return future
        self._jobs.put((future, job))
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def map(self, function: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Apply a function to items in all threads; results in order, the first exception in order is raised."""
        size = max(1, -(-len(items) // self._count))
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        jobs = [self.submit(lambda part=part: [function(item) for item in part]) for part in parts]  # type: ignore[misc]
        return [result for job in jobs for result in wait(job)]

    def cancel(self) -> None:
        """Cancel what has not begun."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job[0].cancel()

    def close(self, deadline: float = 2.0) -> None:
        """Cancel what has not begun and wait for what has, at most `deadline` seconds a thread."""
        self._closed = True
        self.cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(deadline)
        self._threads.clear()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - carried to whoever waits for the result
                future.set_exception(error)
            del job, future, call  # an idle thread must not keep the last result alive


def wait(future: Future[T]) -> T:
    """A future's result; wakes now and then so that Ctrl-C is heard everywhere.

    What it waits for has its own deadline.
    """
    while not futures.wait([future], timeout=1.0).done:
        pass
    return future.result()
