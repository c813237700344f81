"""Keeps a server process alive for exactly as long as the process that asked for it, then cleans up after it.

It is run by serve.py, with one JSON argument, as the parent of the server; it knows nothing of what that is.
A watcher of its own is needed because nothing else outlives a SIGKILL of the process that started a server.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run `command` until told to end it or `parent` is gone, then remove the paths of `remove`."""
    order = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(order["command"], stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    ended_by_itself = False
    try:
        Path(order["pid_file"]).write_text(str(child.pid))
        while child.poll() is None and os.getppid() == order["parent"]:
            time.sleep(POLL_SECONDS)
        ended_by_itself = os.getppid() == order["parent"]
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end(child, grace=order["grace"])
        if not ended_by_itself:  # else its parent wants to read the log
            for path in order["remove"]:
                _remove(Path(path))
    sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)


def _leave(signum: int, frame: object) -> NoReturn:
    sys.exit(0)


def _die_with_parent() -> None:
    # Only Linux has it; elsewhere a SIGKILL of this very process leaves the server behind.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    if grace > 0:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    child.kill()
    child.wait()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
