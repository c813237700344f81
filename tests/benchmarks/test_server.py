from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from benchmarks.server import running


def test_two_benchmarks_do_not_share_a_folder(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="--home"), running(tmp_path, "x"):
            pass
