"""Work that a thread does, one piece after the other, and whose errors are raised at the next call.

The end of the interpreter waits for what is not done yet, up to a deadline. What the work is, is not known here.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # registers its own end first, so that ours comes before it
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from streamio.errors import StreamioError

logger = logging.getLogger(__name__)

#: Seconds that the end of the interpreter waits for.
AT_EXIT = 60.0


class Later:
    """A queue of work and its thread, which lives as long as there is something to do.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue: deque[tuple[str, Callable[[], object]]] = deque()
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None
        self.now = ""

    def submit(self, what: str, work: Callable[[], object]) -> None:
        """Do something behind all that was submitted before.

        Args:
            what: What it is, for messages.
            work: Does it.
        """
        with self._lock:
            self._queue.append((what, work))
            if self._thread is None or not self._thread.is_alive():  # a forked child has no thread
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                _busy.add(self)
                self._thread.start()

    def check(self) -> None:
        """Raise the first error since the last call of `check` or `finish`, without waiting.

        Raises:
            Exception: What the work raised.
        """
        with self._lock:
            failed, self._failed = self._failed, None
        if isinstance(failed, StreamioError):
            raise type(failed)(f"What was to be done meanwhile has failed: {failed}") from failed
        if failed is not None:
            raise failed

    def finish(self) -> None:
        """Wait until everything is done; as long as the work itself takes.

        Raises:
            Exception: As for `check`.
        """
        self.join()
        self.check()

    def join(self, deadline: float | None = None) -> bool:
        """Wait until everything is done, or until a time of `time.monotonic`; whether it is."""
        thread = self._thread
        if thread is not None:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return thread is None or not thread.is_alive()

    def __reduce__(self) -> tuple[Any, ...]:
        return Later, (self._name,)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    _busy.discard(self)
                    return
                self.now, work = self._queue.popleft()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - raised at the next call
                logger.error("%s has failed: %s", self.now, error)  # noqa: TRY400 - its traceback comes with the call
                with self._lock:
                    self._failed = self._failed or error


#: What has a thread at the moment.
_busy: set[Later] = set()


def _at_exit() -> None:
    deadline = time.monotonic() + AT_EXIT
    for each in list(_busy):
        if not each.join(deadline):
            logger.error("%s is not done %g s after the end of the program, and is given up.", each.now, AT_EXIT)


# Not by `atexit` where Python can: connections look up names in threads, which can't be had any more by then.
assert concurrent.futures.thread
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
