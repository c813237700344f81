"""The byte budget and the counters."""

from __future__ import annotations

import threading

from streamio.storage.budget import Budget, Counters


def test_read_ahead_is_refused_where_it_does_not_fit() -> None:
    budget = Budget(10)
    assert budget.try_acquire(6)
    assert not budget.try_acquire(5)
    assert budget.try_acquire(4)
    budget.release(6)
    assert budget.held == 4
    assert budget.peak == 10


def test_what_is_waited_for_is_always_let_through_and_counts_against_read_ahead() -> None:
    budget = Budget(10)
    budget.force(100)
    assert budget.held == 100
    assert not budget.try_acquire(1)
    budget.release(100)
    assert budget.try_acquire(10)


def test_threads_lose_no_count() -> None:
    budget, counters = Budget(1 << 40), Counters()

    def work() -> None:
        for _ in range(5000):
            assert budget.try_acquire(3)
            counters.add(requests=1, bytes_read=2)
            budget.release(2)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.held == 40_000
    assert (counters.requests, counters.bytes_read) == (40_000, 80_000)
