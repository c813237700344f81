"""Items made ahead in a thread: order, exceptions, the limit, and a clean end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from streamio.loader.ahead import Ahead


def counted(made: list[int], count: int, fail_at: int | None = None) -> Iterator[int]:
    for number in range(count):
        if number == fail_at:
            raise ValueError("no more")
        made.append(number)
        yield number


def settled(made: list[int]) -> int:
    """How many items have been made once nothing moves any more."""
    before = -1
    while len(made) != before:
        before = len(made)
        time.sleep(0.05)
    return before


def test_items_come_in_order_and_the_end_stays_the_end() -> None:
    ahead = Ahead(counted([], 1000), lambda _: 1, 10, "test-ahead")
    assert list(ahead) == list(range(1000))
    assert list(ahead) == []
    ahead.close()


def test_no_more_is_made_ahead_than_the_limit_allows() -> None:
    made: list[int] = []
    ahead = Ahead(counted(made, 1000), lambda _: 10, 50, "test-ahead")
    assert settled(made) == 6  # five wait, one is in the hands of the thread
    next(ahead)
    assert settled(made) == 7
    ahead.close()


def test_one_item_is_let_through_however_heavy() -> None:
    ahead = Ahead(counted([], 5), lambda _: 1000, 50, "test-ahead")
    assert list(ahead) == [0, 1, 2, 3, 4]
    ahead.close()


def test_what_the_iterator_raises_comes_behind_its_items_and_again_and_again() -> None:
    ahead = Ahead(counted([], 10, fail_at=3), lambda _: 1, 100, "test-ahead")
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="no more"):
            next(ahead)
    ahead.close()


def test_closing_ends_the_thread_and_closes_the_iterator_in_it() -> None:
    closed_in: list[str] = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed_in.append(threading.current_thread().name)

    ahead = Ahead(items(), lambda _: 1, 10, "test-ahead-closing")
    next(ahead)
    ahead.close()
    assert closed_in == ["test-ahead-closing"]
    assert "test-ahead-closing" not in [thread.name for thread in threading.enumerate()]
    assert list(ahead) == []


def test_what_has_to_wait_is_made_ready_meanwhile_and_what_does_not_is_not() -> None:
    made: list[int] = []
    ahead = Ahead(counted(made, 1000), lambda _: 10, 50, "test-ahead", lambda number: -number)
    assert settled(made) == 6
    assert [next(ahead) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert next(ahead) == -5
    ahead.close()
