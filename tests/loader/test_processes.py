"""Real worker processes: the same batches as without, and nothing left behind however an iteration ends."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

import streamio
from streamio.errors import WorkerError
from tests.loader.data import ids_of, write_lines, write_parquet
from tests.loader.maps import exit_at_30, fail_at_30, sleep_long

SIZES = (41, 0, 13, 50, 7)


@pytest.fixture(params=["parquet", "jsonl"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (write_parquet if request.param == "parquet" else write_lines)(tmp_path, SIZES)
    return tmp_path


def loader_of(folder: Path, workers: int, batch: int | None = 4, **options: Any) -> streamio.DataLoader:
    dataset = streamio.StreamingDataset(folder, shuffle=True, seed=5, window=10)
    return streamio.DataLoader(dataset, batch, num_workers=workers, **options)


def add_worker(record: dict[str, Any]) -> dict[str, Any]:
    info = get_worker_info()
    assert info is not None
    return {**record, "worker": info.id, "workers": info.num_workers, "pid": os.getpid(), "numpy": np.random.rand()}


def assert_no_workers(before: set[int]) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
        left = [
            p
            for p in left
            if "forkserver" not in " ".join(_cmdline(p)) and "resource_tracker" not in " ".join(_cmdline(p))
        ]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"left behind: {left}")


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def before() -> set[int]:
    return {p.pid for p in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("seed", range(12))
def test_batches_resumes_and_epochs_are_exact_with_real_pools(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(0, 50) for _ in range(rng.randint(1, 5))] + [1]
    kind = rng.choice(["parquet", "jsonl"])
    (write_parquet if kind == "parquet" else write_lines)(tmp_path, sizes)
    world, workers, batch = rng.randint(1, 3), rng.randint(1, 4), rng.choice([1, 3, 7, None])
    options: dict[str, Any] = {
        "shuffle": rng.random() < 0.7,
        "seed": seed,
        "window": rng.randint(1, 30),
        "end": "exact",
    }
    persistent = rng.random() < 0.5

    def loader(rank: int) -> streamio.DataLoader:
        dataset = streamio.StreamingDataset(tmp_path, rank=rank, world_size=world, **options)
        return streamio.DataLoader(dataset, batch, num_workers=workers, persistent_workers=persistent)

    def ids(batches: Any) -> list[Any]:
        return [r["id"] for r in batches] if batch is None else ids_of(batches)

    ranks = [ids(loader(rank)) for rank in range(world)]
    flat = [i for r in ranks for b in r for i in ([b] if batch is None else b)]
    assert sorted(flat) == list(range(sum(sizes)))

    rank = rng.randrange(world)
    first = loader(rank)
    iterator = iter(first)
    stop = rng.randint(0, len(ranks[rank]))
    for _ in range(stop):
        next(iterator)
    state = first.state_dict()
    del iterator
    second = loader(rank)
    second.load_state_dict(state)
    rest = ids(second) if second.epoch == 0 else []
    assert rest == ranks[rank][stop:]
    again = loader(rank)
    again.set_epoch(second.epoch)
    assert ids(second) == ids(again)  # the epoch behind the resumed one, by the same loader


def test_workers_share_the_batches_and_know_who_they_are(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    dataset = streamio.StreamingDataset(tmp_path, map=add_worker)
    batches = list(streamio.DataLoader(dataset, 4, num_workers=3))
    assert [batch[0]["worker"] for batch in batches] == [k % 3 for k in range(len(batches))]
    assert {record["workers"] for batch in batches for record in batch} == {3}
    assert len({record["pid"] for batch in batches for record in batch}) == 3
    assert len({batch[0]["numpy"] for batch in batches[:3]}) == 3  # each worker has a random state of its own


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_every_start_method_gives_the_same_batches(folder: Path, context: str) -> None:
    expected = ids_of(loader_of(folder, 2))
    assert ids_of(loader_of(folder, 2, multiprocessing_context=context)) == expected


def test_records_one_by_one(folder: Path) -> None:
    records = [record["id"] for record in loader_of(folder, 2, batch=None)]
    assert sorted(records) == list(range(sum(SIZES)))


def test_collate_runs_in_the_worker_and_tensors_arrive(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    dataset = streamio.StreamingDataset(tmp_path)
    loader = streamio.DataLoader(dataset, 8, num_workers=2, collate_fn=_to_tensor)
    batches = list(loader)
    assert sorted(torch.cat([batch["id"] for batch in batches]).tolist()) == list(range(111))
    assert all(batch["pid"] != os.getpid() for batch in batches)


def _to_tensor(records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": torch.tensor([record["id"] for record in records]), "pid": os.getpid()}


def test_persistent_workers_live_on_and_see_the_epoch(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    dataset = streamio.StreamingDataset(tmp_path, shuffle=True, map=add_worker)
    loader = streamio.DataLoader(dataset, 4, num_workers=2, persistent_workers=True)
    epochs = [list(loader) for _ in range(3)]
    assert len({record["pid"] for epoch in epochs for batch in epoch for record in batch}) == 2
    orders = [[r["id"] for b in epoch for r in b] for epoch in epochs]
    assert orders[0] != orders[1] != orders[2]
    assert all(set(order) == set(range(111)) for order in orders)
    assert loader.epoch == 3


def test_persistent_workers_end_with_their_loader(folder: Path, before: set[int]) -> None:
    loader = loader_of(folder, 2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    del loader, iterator  # by reference counts alone: nothing may wait for the garbage collector
    assert_no_workers(before)


def test_an_early_break_leaves_no_process(folder: Path, before: set[int]) -> None:
    for _ in loader_of(folder, 3):
        break
    assert_no_workers(before)


def test_an_exception_in_the_loop_leaves_no_process(folder: Path, before: set[int]) -> None:
    def train() -> None:
        for _ in loader_of(folder, 2):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert_no_workers(before)


def test_a_newer_iterator_takes_over_and_the_older_one_says_so(folder: Path, before: set[int]) -> None:
    loader = loader_of(folder, 2)
    first = iter(loader)
    one = next(first)
    second = iter(loader)
    assert ids_of([next(second)]) == ids_of([one])
    with pytest.raises(streamio.StreamioError, match="newer one of the same loader"):
        next(first)
    rest = list(second)
    assert loader.epoch == 1
    assert len(rest) > 1
    assert_no_workers(before)


def test_an_error_in_a_map_arrives_as_it_is_with_the_workers_traceback(tmp_path: Path, before: set[int]) -> None:
    write_parquet(tmp_path, SIZES)
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, map=fail_at_30), 4, num_workers=1)
    seen = []
    with pytest.raises(KeyError, match="thirty") as caught:
        seen.extend(record["id"] for batch in loader for record in batch)
    assert "fail_at_30" in str(caught.value.__cause__)
    assert seen == list(range(28))  # everything before it was delivered
    assert_no_workers(before)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_told_at_once_and_by_its_signal(folder: Path, before: set[int], persistent: bool) -> None:
    loader = loader_of(folder, 2, persistent_workers=persistent, restart_workers=0)
    iterator = iter(loader)
    next(iterator)
    victim = next(p for p in psutil.Process().children() if p.pid not in before)
    os.kill(victim.pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(WorkerError, match=rf"pid {victim.pid}.*SIGKILL"):
        list(iterator)
    assert time.monotonic() - begun < 5
    assert_no_workers(before)
    assert len(list(loader)) > 5  # the loader can be used again


def test_a_worker_that_exits_is_told_by_its_code(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    dataset = streamio.StreamingDataset(tmp_path, map=exit_at_30)
    loader = streamio.DataLoader(dataset, 4, num_workers=2, restart_workers=0)
    with pytest.raises(WorkerError, match="exit code 7"):
        list(loader)


def test_a_worker_that_hangs_is_cut_by_timeout(tmp_path: Path, before: set[int]) -> None:
    write_parquet(tmp_path, SIZES)
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, map=sleep_long), 4, num_workers=1, timeout=0.5)
    with pytest.raises(WorkerError, match=r"timeout=0\.5"):
        list(loader)
    assert_no_workers(before)


def test_what_cant_be_pickled_is_told(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    loader = streamio.DataLoader(
        streamio.StreamingDataset(tmp_path, map=lambda r: r), 4, num_workers=1, multiprocessing_context="spawn"
    )
    with pytest.raises(WorkerError, match="top of a module"):
        list(loader)
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, map=lambda r: lambda: r), 4, num_workers=1)
    with pytest.raises(WorkerError, match="can't be pickled"):
        list(loader)


def test_worker_init_fn_is_called_and_its_error_arrives(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)

    def init(worker: int) -> None:
        if worker == 1:
            raise ValueError("no such worker")

    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path), 4, num_workers=2, worker_init_fn=init)
    with pytest.raises(ValueError, match="no such worker"):
        list(loader)


def run(program: str, *, send: int | None = None, deadline: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program that prints its workers' pids first; send it a signal then where asked."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        pids = [int(pid) for pid in line.split()]
        if send is not None:
            process.send_signal(send)
        out, err = process.communicate(timeout=deadline)
    except BaseException:
        process.kill()
        raise
    end = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert pids, err
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


PROGRAM = """
import time, psutil, streamio
loader = streamio.DataLoader(streamio.StreamingDataset({folder!r}), 4, num_workers=2)
if __name__ == "__main__":
    iterator = iter(loader)
    next(iterator)
    print(*[p.pid for p in psutil.Process().children()], flush=True)
    {then}
"""


def test_ctrl_c_in_the_loop_ends_everything(folder: Path) -> None:
    done = run(PROGRAM.format(folder=str(folder), then="time.sleep(60)"), send=signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr
    assert "streamio-worker" not in done.stderr  # workers say nothing of it


def test_ctrl_c_while_waiting_for_a_batch_ends_everything(folder: Path) -> None:
    program = PROGRAM.replace("4, num_workers", "4, collate_fn=lambda b: time.sleep(0.4) or b, num_workers")
    done = run(program.format(folder=str(folder), then="[batch for batch in iterator]"), send=signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr


def test_an_open_iterator_does_not_hold_up_the_exit(folder: Path) -> None:
    begun = time.monotonic()
    done = run(PROGRAM.format(folder=str(folder), then="keep = iterator"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.replace("\n", "") == "" or "Error" not in done.stderr
    assert time.monotonic() - begun < 30


def test_workers_end_with_a_parent_that_was_killed(folder: Path) -> None:
    done = run(PROGRAM.format(folder=str(folder), then="time.sleep(60)"), send=signal.SIGKILL)
    assert done.returncode == -signal.SIGKILL


def test_a_stopped_worker_holds_up_nobody(tmp_path: Path, before: set[int]) -> None:
    write_parquet(tmp_path, SIZES)
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path), 4, num_workers=2, timeout=1)
    iterator = iter(loader)
    next(iterator)
    victim = next(p for p in psutil.Process().children() if p.pid not in before)
    os.kill(victim.pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="did not answer"):
        list(iterator)
    assert_no_workers(before)


def test_kills_at_random_moments_are_all_told(tmp_path: Path, before: set[int]) -> None:
    write_parquet(tmp_path, (400,))
    rng = random.Random(0)
    told = 0
    for _ in range(40):
        dataset = streamio.StreamingDataset(tmp_path, map=_large)
        iterator = iter(streamio.DataLoader(dataset, 2, num_workers=2, collate_fn=_with_tensor, restart_workers=0))
        victims = [p for p in psutil.Process().children() if p.pid not in before]
        killer = threading.Timer(rng.random() * 0.1, os.kill, (rng.choice(victims).pid, signal.SIGKILL))
        killer.start()
        begun = time.monotonic()
        try:
            for _ in iterator:
                pass
        except WorkerError as error:
            told += 1
            assert "SIGKILL" in str(error)  # noqa: PT017 - it may also have come too late
        killer.join()
        assert time.monotonic() - begun < 20
        iterator.close()
    assert told > 20
    assert_no_workers(before)


def _large(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "bytes": b"x" * 500_000}


def _with_tensor(records: list[dict[str, Any]]) -> tuple[Any, torch.Tensor]:
    return records, torch.zeros(100_000)


class NeedsTwoError(Exception):
    def __init__(self, what: str, url: str) -> None:
        super().__init__(f"{what} of {url}")


def raise_odd_error(record: dict[str, Any]) -> dict[str, Any]:
    raise NeedsTwoError("trouble", "s3://bucket")


def test_an_error_that_does_not_survive_pickling_is_still_told(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, map=raise_odd_error), 4, num_workers=1)
    with pytest.raises(WorkerError, match="NeedsTwoError: trouble of s3://bucket"):
        list(loader)


def slow(record: dict[str, Any]) -> dict[str, Any]:
    time.sleep(1)
    return record


def test_a_trainers_signal_handler_is_not_run_in_workers(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    mark = tmp_path / "handled"
    old = signal.signal(signal.SIGTERM, lambda *_: mark.write_text(str(os.getpid())))
    try:
        for _ in streamio.DataLoader(streamio.StreamingDataset(tmp_path / "*.parquet", map=slow), 1, num_workers=2):
            break
    finally:
        signal.signal(signal.SIGTERM, old)
    assert not mark.exists()


def with_tensors(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"], **{name: torch.zeros(3) for name in "abcd"}}


def test_tensors_one_by_one_do_not_use_up_file_descriptors(tmp_path: Path) -> None:
    write_parquet(tmp_path, (600,))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, map=with_tensors), None, num_workers=2)
        assert len([record["a"] for record in loader]) == 600
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_program_without_its_guard_is_told_so_at_once(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import streamio\n"
        f"loader = streamio.DataLoader(streamio.StreamingDataset({str(folder)!r}), 4, num_workers=2,\n"
        "                             multiprocessing_context='forkserver')\n"
        "print('one run', flush=True)\n"
        "list(loader)\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert "WorkerError: Worker " in done.stderr
    assert 'must stand below `if __name__ == "__main__":`' in done.stderr
    assert done.stdout.count("one run") <= 3  # of the program, and of each worker
