"""What a process and its children cost: CPU seconds and memory, from getrusage and /proc (Linux)."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_SECONDS = 0.1


def descendants(pid: int) -> list[int]:
    """Living children of a process, and theirs."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for task in _tasks(waiting.pop()):
            with contextlib.suppress(OSError):
                children = [int(child) for child in (task / "children").read_text().split()]
                found += children
                waiting += children
    return found


def cpu_seconds() -> float:
    """CPU seconds, user and system, of this process and all its children, those that have ended included."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    for child in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / TICKS  # own, and of its own children that have ended
    return total


def peak_rss() -> int:
    """The most memory that this process has had so far, in bytes (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not tell VmHWM")


class ChildrenMemory:
    """Watches the children of a process from outside, and keeps the most that they had together.

    Pages that they share are counted for each, as they are for every loader.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ChildrenMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(_rss(child) for child in descendants(self._pid)))


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0
