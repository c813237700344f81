"""Finds and ends all processes that descend from one command, whatever became of their parents.

They are told by a variable in their environment, which every child inherits: torchrun gives each rank a session
of its own, and a killed parent leaves orphans, so that neither groups nor parents would do.
"""

from __future__ import annotations

import contextlib
import time

import psutil

MARK = "STREAMIO_DEMO_MARK"
DEADLINE = 30.0


def living(mark: str) -> list[psutil.Process]:
    """The processes that were started with `MARK=mark`, oldest first."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # ended meanwhile, or somebody else's
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return sorted(found, key=lambda process: (process.create_time(), process.pid))


def kill_all(mark: str) -> int:
    """End them all by SIGKILL, and those that they started meanwhile; returns how many there were.

    Raises:
        TimeoutError: Some live on after 30 seconds.
    """
    killed: set[int] = set()
    end = time.monotonic() + DEADLINE
    while processes := living(mark):
        if time.monotonic() > end:
            raise TimeoutError(f"processes {sorted(process.pid for process in processes)} outlive a SIGKILL")
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                killed.add(process.pid)
        time.sleep(0.02)
    return len(killed)
