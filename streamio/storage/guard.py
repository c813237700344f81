"""Remembers whether obstore has been used in this process, or in one that it was forked from.

A forked child of such a process hangs when it uses obstore, and may take its parent with it: the loader
chooses its start method by `obstore_used`, and the engine refuses by `refuse_after_fork`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from streamio.errors import WorkerError
from streamio.storage.faults import shown

_used_by: int | None = None
_inherited = False
_about_to_fork = False


def obstore_used() -> bool:
    """Whether a child forked now could not use obstore: it was used here or in a process forked from.

    True also where tokio's threads run because of another library's obstore.
    """
    return _inherited or _used_by is not None or _tokio_runs()


def mark_obstore_used() -> None:
    """Note the first obstore I/O of this process."""
    global _used_by
    if _used_by is None:
        _used_by = os.getpid()


def refuse_after_fork(url: str) -> None:
    """Raise where obstore would hang.

    Raises:
        WorkerError: This process was forked from one that had used obstore.
    """
    if _inherited:
        raise WorkerError(
            f"{shown(url)} can't be read in this process: it was forked from one that had already used obstore, "
            "which does not survive a fork. Start workers with "
            'multiprocessing_context="forkserver" (or "spawn"), or fork before anything is read.'
        )


def _tokio_runs() -> bool:
    """Whether this process has threads of a tokio runtime (Linux tells their names)."""
    tasks = Path("/proc/self/task")
    try:
        return any((task / "comm").read_text().strip() == "tokio-rt-worker" for task in tasks.iterdir())
    except OSError:
        return False


def _before_fork() -> None:
    global _about_to_fork
    imported = "obstore" in sys.modules  # a look at every thread is not for free
    _about_to_fork = _inherited or _used_by is not None or (imported and _tokio_runs())


def _in_child() -> None:
    global _inherited, _used_by
    _inherited, _used_by = _about_to_fork, None


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
