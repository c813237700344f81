"""Workers that die: the batches go on as if nothing had been, within a limit, and what happened is told."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import get_worker_info

import streamio
from streamio.errors import WorkerError
from tests.loader.data import ids_of, write_lines, write_parquet
from tests.loader.maps import exit_at_30, fail_at_30, sleep_long

SIZES = (90, 0, 61, 70, 7, 80)


def slow(record: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.001)
    return record


def drop_sevenths(record: dict[str, Any]) -> dict[str, Any]:
    info = get_worker_info()
    assert info is not None
    time.sleep(0.001 + 0.002 * info.id)  # the first is done early, and what it sent lies there when another one dies
    if record["id"] % 7 == 0:
        raise streamio.DropRecord("seventh")
    return record


def exit_at_once(worker: int) -> None:
    os._exit(5)


def loader_of(folder: Path, batch: int | None = 4, workers: int = 2, **options: Any) -> streamio.DataLoader:
    of_loader = {
        "persistent_workers",
        "multiprocessing_context",
        "restart_workers",
        "output",
        "worker_init_fn",
        "timeout",
    }
    given = {name: value for name, value in options.items() if name in of_loader}
    others = {name: value for name, value in options.items() if name not in of_loader}
    dataset = streamio.StreamingDataset(folder, **{"shuffle": True, "seed": 5, "window": 10, "map": slow, **others})
    return streamio.DataLoader(dataset, batch, num_workers=workers, **given)


def kill(worker: int) -> int:
    """Kill the worker that runs under a number now."""
    for process in multiprocessing.active_children():
        if process.name == f"streamio-worker-{worker}" and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            return process.pid
    raise AssertionError(f"no worker {worker} is running")


def killing(iterator: Iterator[Any], workers: int, rng: random.Random) -> Iterator[Any]:
    """The batches of an iterator, each worker killed once at a random moment on the way."""
    victims = rng.sample(range(workers), workers)
    # A death shows when the loop has to wait: at the latest behind what was received before it.
    at = {place * (4 * workers) + rng.randrange(2): victim for place, victim in enumerate(victims)}
    for number, batch in enumerate(iterator):
        yield batch
        if number in at:
            time.sleep(rng.random() * 0.01)
            kill(at[number])


@pytest.mark.parametrize(
    ("kind", "workers", "context"),
    [
        ("parquet", 2, "fork"),
        ("parquet", 3, "fork"),
        ("jsonl", 2, "fork"),
        ("jsonl", 3, "fork"),
        ("parquet", 2, "forkserver"),
    ],
)
def test_each_worker_killed_once_leaves_the_batches_as_they_are(
    tmp_path: Path, kind: str, workers: int, context: str
) -> None:
    (write_parquet if kind == "parquet" else write_lines)(tmp_path, SIZES)
    expected = ids_of(loader_of(tmp_path, workers=workers))
    loader = loader_of(tmp_path, workers=workers, multiprocessing_context=context)
    rng = random.Random(workers)
    assert ids_of(killing(iter(loader), workers, rng)) == expected
    assert loader.stats().worker_restarts == workers
    assert loader.stats().batches == len(expected)
    assert (loader.epoch, loader.step) == (1, len(expected))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_kills_at_any_moment_leave_the_batches_as_they_are(tmp_path: Path, kind: str) -> None:
    (write_parquet if kind == "parquet" else write_lines)(tmp_path, (150,))
    expected = ids_of(loader_of(tmp_path, batch=3))
    rng = random.Random(1)
    restarts = 0
    before = {process.pid for process in psutil.Process().children()}
    for _ in range(12):
        loader = loader_of(tmp_path, batch=3, restart_workers=20)
        over = threading.Event()

        def kill_now_and_then(over: threading.Event = over) -> None:
            for _ in range(6):
                if over.wait(rng.random() * 0.05):
                    return
                workers = [process for process in psutil.Process().children() if process.pid not in before]
                with suppress(IndexError, psutil.Error):  # they are being started just now
                    rng.choice(workers).kill()

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            assert ids_of(loader) == expected
        finally:
            over.set()
            killer.join()
        restarts += loader.stats().worker_restarts
    assert restarts > 12


@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_what_is_counted_is_what_was_delivered(tmp_path: Path, kind: str, batch: int | None) -> None:
    if kind == "parquet":
        write_parquet(tmp_path, SIZES)
    else:
        write_lines(tmp_path, SIZES, bad=frozenset(range(3, 300, 11)))
    options: dict[str, Any] = {"map": drop_sevenths, "workers": 3, "batch": batch}
    whole = loader_of(tmp_path, **options)
    expected = list(whole)
    loader = loader_of(tmp_path, **options)
    assert list(killing(iter(loader), 3, random.Random(2))) == expected
    names = ("records", "batches", "padded", "refilled", "dropped")
    counts, wanted = loader.stats(), whole.stats()
    assert [getattr(counts, name) for name in names] == [getattr(wanted, name) for name in names]
    assert counts.worker_restarts == 3 or (batch is None and counts.worker_restarts)  # many come at once
    assert loader.ledger.drops.to_json() == whole.ledger.drops.to_json()


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_place_behind_a_restart_is_resumed_from_exactly(tmp_path: Path, kind: str) -> None:
    (write_parquet if kind == "parquet" else write_lines)(tmp_path, SIZES)
    expected = ids_of(loader_of(tmp_path))
    loader = loader_of(tmp_path)
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(5)]
    kill(1)
    seen += [next(iterator) for _ in range(8)]
    assert loader.stats().worker_restarts == 1
    state = loader.state_dict()
    iterator.close()
    resumed = loader_of(tmp_path)
    resumed.load_state_dict(state)
    assert ids_of(seen) + ids_of(resumed) == expected


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_records_one_by_one_and_endless_streams_go_on_as_well(tmp_path: Path, kind: str) -> None:
    (write_parquet if kind == "parquet" else write_lines)(tmp_path, (40, 13))
    expected = [record["id"] for record in islice(loader_of(tmp_path, None, end="cycle"), 300)]
    loader = loader_of(tmp_path, None, end="cycle")
    iterator = iter(loader)
    seen = []
    for number in range(300):
        seen.append(next(iterator)["id"])
        if number in (20, 220):
            kill(number % 3 % 2)
    iterator.close()
    assert seen == expected
    assert loader.stats().worker_restarts > 0


def test_batches_that_are_held_stay_as_they_are(tmp_path: Path) -> None:
    values = np.arange(240_000, dtype=np.int64)
    pq.write_table(pa.table({"id": values}), tmp_path / "a.parquet", row_group_size=20_000)
    options: dict[str, Any] = {"batch": 10_000, "window": 20_000, "output": "columns", "map": None}
    expected = [batch["id"].copy() for batch in loader_of(tmp_path, **options)]
    loader = loader_of(tmp_path, **options)
    iterator = iter(loader)
    held = [next(iterator)["id"] for _ in range(2)]
    kill(0)
    kill(1)
    held += [batch["id"] for batch in iterator]
    assert loader.stats().worker_restarts == 1
    assert all(np.array_equal(one, other) for one, other in zip(held, expected, strict=True))


def test_a_death_is_told_with_worker_reason_and_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_parquet(tmp_path, SIZES)
    loader = loader_of(tmp_path)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    pid = kill(1)
    with caplog.at_level(logging.WARNING, "streamio"):
        list(iterator)
    (told,) = [record.getMessage() for record in caplog.records if "started anew" in record.getMessage()]
    assert told.startswith(f"Worker 1 (pid {pid}) was killed by signal 9 (SIGKILL)")
    step = int(told.partition("behind step ")[2].split()[0])
    assert 6 <= step <= 10  # what had been received by then was delivered first
    assert "restart 1 of at most 3" in told


def test_a_worker_that_dies_again_and_again_stops_the_run_in_the_end(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    loader = loader_of(tmp_path, shuffle=False, workers=1, map=exit_at_30, restart_workers=2)
    seen: list[int] = []
    with pytest.raises(WorkerError, match=r"exit code 7.*tried 3 times in this epoch \(restart_workers=2\)") as caught:
        seen.extend(record["id"] for batch in loader for record in batch)
    assert type(caught.value) is WorkerError
    assert seen == list(range(len(seen)))
    assert loader.stats().worker_restarts == 2
    assert loader.step == len(seen) // 4
    with pytest.raises(WorkerError, match=r"exit code 5.*what comes behind step 0 was tried 2 times"):
        list(loader_of(tmp_path, worker_init_fn=exit_at_once, restart_workers=1))


def test_each_epoch_has_restarts_of_its_own(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    whole = loader_of(tmp_path)
    loader = loader_of(tmp_path, restart_workers=1)
    for epoch in range(3):
        expected = ids_of(whole)
        iterator = iter(loader)
        first = next(iterator)
        kill(epoch % 2)
        assert ids_of([first, *iterator]) == expected
    assert loader.stats().worker_restarts == 3


def test_a_worker_killed_between_epochs_is_replaced(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    whole = loader_of(tmp_path)
    loader = loader_of(tmp_path, persistent_workers=True)
    assert ids_of(loader) == ids_of(whole)
    pid = kill(0)
    assert ids_of(loader) == ids_of(whole)
    assert loader.stats().worker_restarts == 1
    assert kill(0) != pid  # the new ones live on
    assert ids_of(loader) == ids_of(whole)


def test_switched_off_a_death_is_an_error(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    loader = loader_of(tmp_path, restart_workers=0)
    iterator = iter(loader)
    next(iterator)
    pid = kill(0)
    with pytest.raises(WorkerError, match=rf"^Worker 0 \(pid {pid}\) was killed by signal 9 \(SIGKILL\)[^.]*\.$"):
        list(iterator)
    assert loader.stats().worker_restarts == 0


def test_errors_and_hangs_start_nothing_anew(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    loader = loader_of(tmp_path, map=fail_at_30)
    with pytest.raises(KeyError, match="thirty"):
        list(loader)
    assert loader.stats().worker_restarts == 0
    loader = loader_of(tmp_path, map=sleep_long, timeout=0.5)
    with pytest.raises(WorkerError, match=r"timeout=0\.5"):
        list(loader)
    assert loader.stats().worker_restarts == 0


def test_a_restart_leaves_the_training_loops_random_state_alone(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)

    def drawn(*victims: int) -> torch.Tensor:
        torch.manual_seed(3)
        loader = loader_of(tmp_path)
        iterator = iter(loader)
        next(iterator)
        for victim in victims:
            kill(victim)
        list(iterator)
        assert loader.stats().worker_restarts == bool(victims)
        return torch.rand(3)

    assert torch.equal(drawn(), drawn(0))


def test_a_death_whose_exit_code_somebody_else_took_is_a_death(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    expected = ids_of(loader_of(tmp_path))
    loader = loader_of(tmp_path)
    iterator = iter(loader)
    first = next(iterator)
    os.waitpid(kill(1), 0)  # as a trainer's SIGCHLD handler may do
    assert ids_of([first, *iterator]) == expected
    assert loader.stats().worker_restarts == 1


def test_a_number_of_restarts_below_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="restart_workers=-1"):
        loader_of(tmp_path, restart_workers=-1)
