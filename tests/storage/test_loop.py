"""The io loop of a process."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time

import pytest

from streamio.storage.loop import IoLoop, in_thread, io_loop


def test_there_is_one_loop_a_process_in_a_daemon_thread() -> None:
    loop = io_loop()
    assert io_loop() is loop
    assert loop.alive
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "streamio-io"]
    assert thread.daemon


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    parent = io_loop()
    pid = os.fork()
    if pid == 0:
        child = io_loop()
        works = child is not parent and not parent.alive and child.submit(asyncio.sleep(0, 7)).result(5) == 7
        os._exit(0 if works else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert parent.submit(asyncio.sleep(0, 8)).result(5) == 8


def test_shutting_down_ends_tasks_closes_users_and_stops_the_thread() -> None:
    class User:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    loop, user = IoLoop(), User()
    loop.users.add(user)
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    future = loop.submit(work())
    loop.submit(asyncio.sleep(0)).result(5)
    loop.shut_down()
    assert ended.is_set()
    assert future.cancelled()
    assert user.closed == 1
    assert not loop.alive
    loop.loop.close()


def test_a_blocking_call_returns_raises_and_is_left_alone_when_cancelled() -> None:
    async def work() -> float:
        assert await in_thread(lambda: 7) == 7
        with pytest.raises(KeyError):
            await in_thread(lambda: {}["x"])
        began = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(in_thread(lambda: time.sleep(1)), 0.05)
        return time.monotonic() - began

    assert asyncio.run(work()) < 0.9


def test_an_error_behind_a_cancelled_read_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop, begun = IoLoop(), threading.Event()

    async def breaks_when_cancelled() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("while it was ended") from None

    future = loop.submit(breaks_when_cancelled())
    assert begun.wait(5)
    future.cancel()
    loop.submit(asyncio.sleep(0.1)).result(5)
    del future
    gc.collect()
    loop.shut_down()
    assert "never retrieved" not in caplog.text
