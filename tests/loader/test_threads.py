"""Map and collate_fn in threads: the same batches in the same order, made ahead, with errors where they belong."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import streamio
from streamio.loader.threads import Threads
from tests.loader.data import write_lines


@pytest.fixture
def lines(tmp_path: Path) -> str:
    write_lines(tmp_path, [50] * 4)
    return str(tmp_path)


def delivered(lines: str, threads: int, workers: int = 0, **options: Any) -> list[Any]:
    dataset = streamio.StreamingDataset(lines, shuffle=True, seed=1, **options)
    return list(streamio.DataLoader(dataset, 8, threads=threads, num_workers=workers))


def slow_half(record: dict[str, Any]) -> dict[str, Any]:
    if record["id"] % 2:
        time.sleep(0.002)
    if record["id"] % 10 == 3:
        raise streamio.DropRecord("unlucky", "it ends in 3")
    return record


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_with_threads_and_without(lines: str, workers: int) -> None:
    assert delivered(lines, 3, workers, map=slow_half) == delivered(lines, 0, workers, map=slow_half)


def test_map_runs_in_so_many_threads_and_collate_ahead_of_the_loop(lines: str) -> None:
    mapped_in: set[str] = set()
    collated: list[str] = []

    def map_(record: dict[str, Any]) -> dict[str, Any]:
        mapped_in.add(threading.current_thread().name)
        time.sleep(0.001)
        return record

    def collate(batch: list[Any]) -> list[Any]:
        collated.append(threading.current_thread().name)
        return batch

    dataset = streamio.StreamingDataset(lines, map=map_)
    iterator = iter(streamio.DataLoader(dataset, 8, threads=3, collate_fn=collate))
    next(iterator)
    deadline = time.monotonic() + 10
    while len(collated) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(collated) == 3  # the one delivered, and two ahead
    assert mapped_in == {f"streamio-map-{n}" for n in range(3)}
    assert set(collated) == {"streamio-make-0"}
    del iterator


def test_without_threads_all_user_code_runs_in_the_loops_own_thread(lines: str) -> None:
    seen: set[str] = set()

    def map_(record: dict[str, Any]) -> dict[str, Any]:
        seen.add(threading.current_thread().name)
        return record

    dataset = streamio.StreamingDataset(lines, map=map_)
    list(streamio.DataLoader(dataset, 8, collate_fn=lambda b: seen.add(threading.current_thread().name)))
    assert seen == {threading.current_thread().name}


def test_an_error_in_a_thread_reaches_the_loop_with_the_record_named(lines: str) -> None:
    def map_(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] == 77:
            raise ZeroDivisionError("no")
        return record

    loader = streamio.DataLoader(streamio.StreamingDataset(lines, map=map_), 8, threads=2)
    iterator = iter(loader)
    assert sum(len(next(iterator)) for _ in range(9)) == 72
    with pytest.raises(ZeroDivisionError) as caught:
        next(iterator)
    if sys.version_info >= (3, 11):
        assert "p001.jsonl" in "".join(caught.value.__notes__)


def test_the_state_tells_what_was_delivered_not_what_was_made_ahead(lines: str) -> None:
    dataset = streamio.StreamingDataset(lines, map=slow_half, shuffle=True)
    loader = streamio.DataLoader(dataset, 8, threads=2)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(5)]
    state = loader.state_dict()
    again = streamio.DataLoader(streamio.StreamingDataset(lines, map=slow_half, shuffle=True), 8, threads=2)
    again.load_state_dict(state)
    assert first + list(again) == list(streamio.DataLoader(dataset, 8))


def test_a_number_below_zero_is_refused(lines: str) -> None:
    with pytest.raises(ValueError, match="threads=-1 must be 0 or more"):
        streamio.DataLoader(streamio.StreamingDataset(lines), 8, threads=-1)


def test_results_of_a_map_come_in_order_and_the_first_failure_is_raised() -> None:
    threads = Threads(3, "test")
    try:
        assert threads.map(lambda n: n * n, list(range(10))) == [n * n for n in range(10)]
        assert threads.map(lambda n: n, []) == []
        with pytest.raises(ZeroDivisionError):
            threads.map(lambda n: 1 // (n - 4), list(range(10)))
    finally:
        threads.close()
