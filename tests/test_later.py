"""Work in a thread: in order, with errors at the next call, and waited for when the program ends."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from streamio.errors import AccessError
from streamio.later import Later


def test_work_is_done_in_order_and_waited_for() -> None:
    later, done = Later("later"), []
    gate = threading.Event()
    later.submit("the first", gate.wait)
    for number in range(5):
        later.submit(str(number), lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == []  # submitting waits for nothing
    assert not later.join(time.monotonic())
    gate.set()
    later.finish()
    assert done == list(range(5))
    later.submit("again", lambda: done.append(5))
    later.finish()
    assert done[-1] == 5


def test_an_error_is_logged_at_once_and_raised_by_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    later, done = Later("later"), []

    def fail() -> None:
        raise AccessError("s3://bucket/status: not allowed")

    later.submit("Writing the status", fail)
    later.submit("another", lambda: done.append(1))
    with pytest.raises(AccessError, match="has failed: s3://bucket/status: not allowed"):
        later.finish()
    assert done == [1]
    assert [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "streamio.later"] == [
        (logging.ERROR, "Writing the status has failed: s3://bucket/status: not allowed")
    ]
    later.check()  # told once
    later.finish()


def test_it_survives_pickling_without_its_work() -> None:
    later = Later("later")
    gate = threading.Event()
    later.submit("waiting", gate.wait)
    copy = pickle.loads(pickle.dumps(later))
    copy.finish()
    gate.set()
    later.finish()


@pytest.mark.parametrize(("at_exit", "done"), [(20.0, "done\n"), (0.3, "")])
def test_the_end_of_the_program_waits_up_to_a_deadline(at_exit: float, done: str) -> None:
    program = f"""
    import time
    from streamio import later

    later.AT_EXIT = {at_exit}
    slow = later.Later("later")
    slow.submit("Something slow", lambda: time.sleep(1.5) or print("done", flush=True))
    """
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == done
    assert ("Something slow is not done 0.3 s after" in ended.stderr) == (not done)
    assert time.monotonic() - begun < 30
