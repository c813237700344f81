"""Where batches are made: in worker processes of our own, one socket each, or in the training process itself.

The parent waits on sockets and process sentinels at once, so a worker that dies is noticed at once, whatever
it was doing.
Why not torch's pool: docs/decisions/0002-own-worker-pool.md.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import multiprocessing
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol

from streamio.errors import WorkerError
from streamio.loader.channel import Inbox, send
from streamio.loader.restart import WorkerDiedError
from streamio.loader.server import Answer, Server, Serving, Work
from streamio.loader.threads import Threads, wait
from streamio.loader.worker import WorkerArguments, worker_main

if TYPE_CHECKING:
    from streamio.loader.spec import Start

logger = logging.getLogger(__name__)

#: Seconds after which a wait without a deadline says that it is still waiting.
REMIND = 60.0

#: Ten seconds, as the kernel takes them.
_SEND_DEADLINE = struct.pack("ll", 10, 0)


class Pool(Protocol):
    """Makes batches for one loader."""

    workers: int

    def begin(self, start: Start) -> None:
        """Begin an iteration; requests of the one before are forgotten."""
        ...

    def request(self, worker: int, tokens: Sequence[int]) -> None:
        """Ask a worker for batches."""
        ...

    def receive(self, worker: int) -> list[Answer]:
        """Wait for the answers to a worker's oldest request."""
        ...

    def close(self) -> None:
        """End everything; safe to call again."""
        ...


class InProcess:
    """Makes batches in the training process: when they are asked for, or ahead in a thread.

    Either way splits are read and decoded ahead in threads of their own.

    Args:
        work: What batches are made of.
        serving: What is made of it; with `threads`, the user's map and collate_fn run in threads, else in the caller's.
    """

    workers = 1

    def __init__(self, work: Work, serving: Serving) -> None:
        self._server = Server(work, serving)
        self._thread = Threads(1, "streamio-make") if serving.threads else None
        self._requests: deque[Callable[[], list[Answer]]] = deque()
        _open_pools.add(self)

    def begin(self, start: Start) -> None:
        """Begin an iteration."""
        self._requests.clear()
        if self._thread is None:
            self._server.begin(start)
        else:
            wait(self._thread.submit(lambda: self._server.begin(start)))

    def request(self, worker: int, tokens: Sequence[int]) -> None:
        """Remember what is wanted next, or begin to make it."""
        make = partial(self._server.serve, tokens)
        self._requests.append(make if self._thread is None else partial(wait, self._thread.submit(make)))

    def receive(self, worker: int) -> list[Answer]:
        """Make it, or wait until it is made."""
        return self._requests.popleft()()

    def close(self) -> None:
        """End reads and threads."""
        _open_pools.discard(self)
        if self._thread is not None:
            self._thread.close()
        self._server.close()


@dataclass
class _Worker:
    process: BaseProcess
    sock: socket.socket
    inbox: Inbox


class Processes:
    """Worker processes.

    Args:
        arguments: What each worker is started with, but for its number and socket.
        workers: How many.
        context: How they are started.
        timeout: Seconds to wait for a batch; 0 waits as long as the worker lives.

    Raises:
        WorkerError: They can't be started.
    """

    def __init__(
        self,
        arguments: WorkerArguments,
        workers: int,
        context: BaseContext,
        timeout: float,
    ) -> None:
        self.workers = workers
        self._timeout = timeout
        self._iteration = 0
        self._pid = os.getpid()
        self._method = context.get_start_method()
        self._heard: set[int] = set()  # workers that have answered
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        _open_pools.add(self)
        try:
            for number in range(workers):
                self._start(arguments, number, context)
        except BaseException:
            self.close()
            raise

    def begin(self, start: Start) -> None:
        """Begin an iteration in every worker."""
        self._iteration += 1
        for number in range(self.workers):
            self._send(number, ("begin", self._iteration, start, []))

    def request(self, worker: int, tokens: Sequence[int]) -> None:
        """Ask a worker for batches."""
        let_go = self._workers[worker].inbox.let_go()
        self._send(worker, ("make", self._iteration, tuple(tokens), let_go))

    def receive(self, worker: int) -> list[Answer]:
        """Wait for the answers to a worker's oldest request.

        Raises:
            WorkerDiedError: A worker died, this one or another.
            WorkerError: It did not answer in time.
        """
        begun = time.monotonic()
        remind = begun + REMIND
        inbox = self._workers[worker].inbox
        while True:
            message = self._take(worker)
            if message is not None:
                self._heard.add(worker)
                iteration, answers = message
                if iteration == self._iteration:
                    assert isinstance(answers, list)
                    return answers
                continue
            if inbox.closed:
                raise self._death(worker)
            now = time.monotonic()
            if self._timeout and now - begun > self._timeout:
                raise WorkerError(
                    f"Worker {worker} (pid {self._workers[worker].process.pid}) did not answer within "
                    f"timeout={self._timeout:g} s. "
                    f"A slow map or collate_fn, or a stalled store? Raise `timeout`, or look at what the worker "
                    "does (py-spy dump)."
                )
            if now > remind:
                logger.warning("Still waiting for worker %d after %.0f s.", worker, now - begun)
                remind = now + REMIND
            self._wait(min(1.0, self._timeout or 1.0))

    def close(self) -> None:
        """End the workers: asked first, then made to."""
        if self._pid != os.getpid():  # a forked child has no business with its parent's workers
            return
        _open_pools.discard(self)
        workers, self._workers = self._workers, []
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.sock.shutdown(socket.SHUT_RDWR)
            worker.sock.close()
            worker.inbox.close()
        deadline = time.monotonic() + 0.5
        for ask in (lambda _: None, lambda p: p.terminate(), lambda p: p.kill()):
            for worker in workers:
                if worker.process.is_alive():
                    ask(worker.process)
            for worker in workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + 2.0
        self._selector.close()

    def __del__(self) -> None:
        if getattr(self, "_workers", None) and not sys.is_finalizing():
            self.close()

    def _start(self, arguments: WorkerArguments, number: int, context: BaseContext) -> None:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_DEADLINE)  # a stopped worker takes nothing
        try:
            process = context.Process(  # type: ignore[attr-defined]
                target=worker_main,
                args=(arguments, number, self.workers, theirs),
                name=f"streamio-worker-{number}",
                daemon=True,
            )
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            ours.close()
            raise WorkerError(
                f"Worker {number} can't be started by {context.get_start_method()!r}: what it needs can't be "
                f"pickled ({error}). "
                f"Define map, collate_fn, decode and worker_init_fn at the top of a module, not as lambdas or "
                "inner functions."
            ) from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()  # with our copy gone, the worker's death ends the stream
        self._workers.append(_Worker(process, ours, Inbox(ours)))
        self._selector.register(ours, selectors.EVENT_READ, ("socket", number))
        self._selector.register(process.sentinel, selectors.EVENT_READ, ("sentinel", number))

    def _send(self, worker: int, message: Any) -> None:
        try:
            send(self._workers[worker].sock, message)
        except OSError as error:
            raise self._death(worker) from error

    def _take(self, worker: int) -> Any | None:
        try:
            return self._workers[worker].inbox.take()
        except Exception as error:
            # Shared memory of a worker that is gone, or going: it may take a moment to show.
            process = self._workers[worker].process
            process.join(1.0)
            if not process.is_alive():
                raise self._death(worker) from error
            raise

    def _wait(self, seconds: float) -> None:
        """Wait until something has arrived or somebody has died."""
        for key, _ in self._selector.select(seconds):
            kind, number = key.data
            inbox = self._workers[number].inbox
            inbox.read()
            if kind == "sentinel":
                raise self._death(number)
            if inbox.closed:
                self._selector.unregister(key.fileobj)

    def _death(self, number: int) -> WorkerError:
        process = self._workers[number].process
        process.join(5.0)
        code = process.exitcode
        if code is None and not connection.wait([process.sentinel], 0):
            return WorkerError(
                f"Worker {number} (pid {process.pid}) takes no requests any more but is still there: was it stopped "
                "(SIGSTOP)?"
            )
        if code is None:
            how = "has ended, and its exit code was taken by another waitpid() of this process"
        elif code < 0:
            name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else "unknown"
            how = f"was killed by signal {-code} ({name})"
            if -code == signal.SIGKILL:
                how += (
                    "; when nobody sent it, the machine ran out of memory: "
                    "use fewer workers, or smaller prefetch_bytes and shuffle_bytes"
                )
        elif code == 1 and self._method != "fork" and number not in self._heard:  # another one would end as well
            return WorkerError(
                f"Worker {number} (pid {process.pid}) ended before it began; why stands on stderr. Workers made by "
                f"{self._method} import the main program anew: what makes and iterates loaders must stand below "
                '`if __name__ == "__main__":` there.'
            )
        else:
            how = f"ended with exit code {code}"
        return WorkerDiedError(f"Worker {number} (pid {process.pid}) {how}.")


def start_context(wanted: BaseContext | None) -> BaseContext:
    """How workers are started: as the user wants, else by fork while this process has not used obstore.

    Raises:
        WorkerError: A fork is wanted where it would hang.
    """
    from streamio.storage.guard import obstore_used

    methods = multiprocessing.get_all_start_methods()
    if wanted is not None:
        if wanted.get_start_method() == "fork" and obstore_used():
            raise WorkerError(
                'multiprocessing_context="fork" would hang: this process has read through obstore, which does not '
                'survive a fork. Use "forkserver" or "spawn", or make the loader with workers first.'
            )
        return wanted
    if "fork" in methods and not obstore_used():
        return multiprocessing.get_context("fork")
    _warn_once(
        "This process has read through obstore, which does not survive a fork: workers are started by forkserver. "
        'The main program needs its `if __name__ == "__main__":` guard for that.'
    )
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)


#: Pools to be closed at exit, before the interpreter is taken apart around their threads.
_open_pools: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_open_pools() -> None:
    for pool in list(_open_pools):
        pool.close()
