"""The one asyncio loop of a process, in a daemon thread, on which all reads run.

It knows nothing of storage; it sees to it that nothing outlives a fork or hangs the interpreter's end.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import concurrent.futures.thread  # its own exit hook must be registered before ours, to run after it
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
NAME = "streamio-io"
LINGER = 0.2
"""Seconds that the interpreter's end is kept away from a client's last answer."""


class Closable(Protocol):
    """What is closed before the interpreter ends."""

    def close(self) -> None:
        """End at once; may be called again."""
        ...


class IoLoop:
    """A running asyncio loop; use `io_loop()` to get the process's."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.users: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it runs in this process."""
        return self.pid == os.getpid() and self._thread.is_alive()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(_heard(coroutine), self.loop)

    def close_users(self) -> None:
        """Close all that reads on this loop, so that no thread stays blocked."""
        for user in list(self.users):
            with contextlib.suppress(Exception):
                user.close()

    def shut_down(self, timeout: float = 2.0) -> None:
        """End every task, then the loop and its thread, waiting for `timeout` seconds at most."""
        self.close_users()
        if not self.alive:
            return
        with contextlib.suppress(Exception):
            self.submit(_end_tasks()).result(timeout)
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


async def _heard(coroutine: Coroutine[Any, Any, T]) -> T:
    """The same; an error that comes after the future was cancelled is no news to anybody, asyncio would log it."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await coroutine


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call in a daemon thread of its own; a cancelled one is left to end by itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as caught:  # noqa: BLE001 - it is raised where the call is awaited
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="streamio-blocking", daemon=True).start()
    return await future


def io_loop() -> IoLoop:
    """The loop of this process, started on first use; a forked child gets its own."""
    global _current
    with _lock:
        if _current is None or not _current.alive:
            _current = IoLoop()
        return _current


async def _end_tasks() -> None:
    mine = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not mine]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_answered = -LINGER
_current: IoLoop | None = None
_lock = threading.Lock()


_parents: list[object] = []


def _forget() -> None:
    """In a forked child: start anew, and keep what the parent had from being collected.

    Collecting it would close connections and take them off the epoll instance that both processes share.
    """
    global _current, _lock
    if _current is not None:
        _parents.extend((_current, *_current.users))
    _current, _lock = None, threading.Lock()


def _close_users() -> None:
    if _current is not None and _current.alive:
        _current.close_users()


def linger() -> None:
    """Note that a client has just answered: its own threads may still be on their way out of Python.

    One that wants the interpreter's lock while the interpreter is being taken apart ends the process with an abort.
    """
    global _answered
    _answered = time.monotonic()


def _at_exit() -> None:
    if _current is not None:
        _current.shut_down()
    time.sleep(max(0.0, _answered + LINGER - time.monotonic()))


os.register_at_fork(after_in_child=_forget)
atexit.register(_at_exit)
# Threads of a pool that wait for a read are joined before `atexit` runs: wake them earlier where Python can.
getattr(threading, "_register_atexit", atexit.register)(_close_users)
