"""Two small meters of a process's reading: the byte budget for read-ahead, and the counters.

Both may be used from any thread; neither ever waits.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


class Budget:
    """Bytes that may be held before they are asked for.

    Read-ahead asks with `try_acquire` and does without when refused. What a consumer waits for right now
    takes its bytes with `force`, so that nobody ever waits for the budget and it can't deadlock.

    Args:
        limit: Bytes in all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._peak = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes taken at the moment; more than `limit` only by `force`."""
        return self._held

    @property
    def peak(self) -> int:
        """The most that was ever held."""
        return self._peak

    def try_acquire(self, nbytes: int) -> bool:
        """Take bytes if they fit; whether they were taken."""
        with self._lock:
            if self._held + nbytes > self.limit:
                return False
            self._take(nbytes)
            return True

    def force(self, nbytes: int) -> None:
        """Take bytes even if they do not fit."""
        with self._lock:
            self._take(nbytes)

    def release(self, nbytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._held -= nbytes

    def _take(self, nbytes: int) -> None:
        self._held += nbytes
        self._peak = max(self._peak, self._held)


@dataclass
class Counters:
    """What a reader has done so far.

    Attributes:
        requests: Requests sent, retries included.
        bytes_read: Bytes received.
        bytes_needed: Bytes that whoever reads says it has made use of.
        retries: Requests that had to be sent again.
        waited: Seconds that callers waited for bytes, summed over threads.
    """

    requests: int = 0
    bytes_read: int = 0
    bytes_needed: int = 0
    retries: int = 0
    waited: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(
        self, *, requests: int = 0, bytes_read: int = 0, bytes_needed: int = 0, retries: int = 0, waited: float = 0.0
    ) -> None:
        """Count on."""
        with self._lock:
            self.requests += requests
            self.bytes_read += bytes_read
            self.bytes_needed += bytes_needed
            self.retries += retries
            self.waited += waited
