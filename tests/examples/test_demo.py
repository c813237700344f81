"""The demo as `make demo` runs it, end to end: its own server, torchrun, SIGKILL to everything, and the verdict."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
FORMATS = ("parquet", "jsonl.gz", "tar")
DEADLINE = 170.0


def run(*arguments: str) -> str:
    """What the demo printed; fails where it ended with another code than 0, or not in time."""
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        told, _ = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # so that it takes the training and the server with it
        told, _ = process.communicate(timeout=60)
        pytest.fail(f"the demo did not end within {DEADLINE:.0f} s:\n{told}")
    assert process.returncode == 0, told
    return told


def lives(told: str) -> list[tuple[int, str]]:
    """The step that each life resumed from (-1 where it was killed before that), and how it ended."""
    rows = re.findall(r"│ *\d+ *│ *\d+ x \d+ *│ *(\d+|-) *│ [^│]*│[^│]*│ *(.*?) *│", told)
    return [(-1 if step == "-" else int(step), ended) for step, ended in rows]


def small(*, kills: int = 1) -> tuple[str, ...]:
    return ("--records=1280", "--epochs=1", "--save-every=4", f"--kills={kills}")


def random_kill(seed: int, data: str) -> tuple[str, ...]:
    return (f"--data={data}", "--records=1280", "--epochs=1", "--save-every=4", f"--random={seed}")


def assert_each_once(told: str, kills: int = 1) -> None:
    assert "1,280 records, each trained on exactly once along the surviving line of steps" in told
    assert [ended for _, ended in lives(told)][-1] == "itself"
    assert sum(ended.startswith("SIGKILL to ") for _, ended in lives(told)) == kills


def test_a_killed_training_resumes_inside_the_epoch_and_trains_on_each_record_once() -> None:
    told = run(*small())
    assert_each_once(told)
    (first, ended), (second, _) = lives(told)
    assert ended == "SIGKILL to 7"  # torchrun, two ranks, two workers each
    assert first == 0
    assert 0 < second < 20
    assert second % 4 == 0


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "data"), [(0, "parquet"), (2, "tar")])
def test_killed_at_a_random_moment_each_record_is_trained_on_once(seed: int, data: str) -> None:
    assert_each_once(run(*random_kill(seed, data)))


def test_killed_twice_and_resumed_by_other_numbers_of_ranks_and_workers_each_record_is_trained_on_once() -> None:
    told = run(
        "--layouts=4x2,2x3,3x0", "--global-batch=48", "--records=1440", "--epochs=1", "--save-every=4", "--kills=2"
    )
    assert "1,440 records, each trained on exactly once along the surviving line of steps" in told
    assert "dealt anew" in told
    steps = [step for step, _ in lives(told)]
    assert len(steps) == 3
    assert 0 == steps[0] < steps[1] < steps[2] < 30


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_on_a_grid_that_fits_every_topology_trains_on_the_same_batches() -> None:
    grid = ("--lanes", "4", "2", "--records=1280", "--epochs=1", "--save-every=4")
    whole = run("--layouts=2x2", "--kills=0", *grid)
    told = run("--layouts=4x2,2x1,1x0", "--kills=2", *grid)
    assert "dealt anew" not in told
    for each in (whole, told):
        assert "1,280 records, each trained on exactly once along the surviving line of steps" in each
    (digest,) = re.findall(r"Digest of the global batches: (\w+)", whole)
    assert f"Digest of the global batches: {digest}" in told


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [*range(100, 118)])
def test_killed_at_eighteen_more_random_moments_each_record_is_trained_on_once(seed: int) -> None:
    assert_each_once(run(*random_kill(seed, FORMATS[seed % len(FORMATS)])))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("server", ["localstack", "gcs", "moto"])
def test_the_demo_runs_on_the_other_servers(server: str) -> None:
    assert_each_once(run("--server", server, *small()))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("server", ["seaweedfs", "localstack", "gcs"])
@pytest.mark.parametrize("data", ["tar", "jsonl.gz"])
def test_the_demo_runs_with_data_that_are_streamed(server: str, data: str) -> None:
    assert_each_once(run("--server", server, "--data", data, *small()))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("data", ["parquet", "tar"])
def test_killed_three_times_over_two_epochs_each_record_is_trained_on_once(data: str) -> None:
    told = run("--data", data, "--records=1280", "--epochs=2", "--save-every=4", "--kills=3")
    assert_each_once(told, kills=3)
    steps = [step for step, _ in lives(told)]
    assert steps == sorted(steps)
    assert len(set(steps)) == 4


def test_a_number_of_records_that_would_be_padded_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--records=1000"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--records must be a multiple of the global batch, 64" in done.stderr
