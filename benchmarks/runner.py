"""Runs cases in fresh processes, repeats interleaved, and writes down what came, failures included.

It knows nothing of what is measured: see case.py for the process, cases.py and special/ for the cases.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.case import MARK, Case, job
from benchmarks.data import dataset
from benchmarks.measure import ChildrenMemory
from benchmarks.place import DataSet, Place
from benchmarks.server import ROOT, wire_counters

DEADLINE = 900.0
"""Seconds after which a case has failed."""


def run(
    cases: list[Case],
    place: Place,
    repeats: int,
    *,
    before: Iterable[Case] = (),
    header: dict[str, Any] | None = None,
    out: Path | None = None,
    say: Callable[[str], None] = print,
    deadline: float = DEADLINE,
) -> dict[str, Any]:
    """Run every case `repeats` times: the first repeat of all, then the second of all, and so on.

    Args:
        cases: The cases.
        place: Where the data lie.
        repeats: How often.
        before: Cases that are run once before, for what they leave behind.
        header: What else the results are to say of the run.
        out: Where the results are written after each repeat, so that a broken run leaves what it had.
        say: Told each result.
        deadline: Seconds for one case.

    Returns:
        The results: a header, and a list with one entry a case and repeat.
    """
    found: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "repeats": repeats,
        "machine": machine.description(),
        "versions": machine.versions(),
        **(header or {}),
        "results": [],
    }
    sets = {(case.kind, case.format): dataset(place, case.kind, case.format) for case in [*before, *cases]}
    found["sets"] = [
        {"kind": kind, "format": form, "records": data.records, "mb": round(data.object_bytes / 1e6, 1)}
        for (kind, form), data in sets.items()
    ]
    for case in before:
        say(line(result := run_one(case, place, sets[case.kind, case.format], deadline)))
        if "failed" in result:
            found["results"].append({**result, "repeat": 0})
    for data in sets.values():  # so that the first case does not find a colder server than the others
        run_one(warm_up(data), place, data, deadline)
    for repeat in range(1, repeats + 1):
        for case in cases:
            result = run_one(case, place, sets[case.kind, case.format], deadline)
            found["results"].append({**result, "repeat": repeat})
            say(f"[{repeat}/{repeats}] {line(result)}")
        if out is not None:
            out.write_text(json.dumps(found, indent=1))
    return found


def warm_up(data: DataSet) -> Case:
    """Reads a set once."""
    extra = {"range_mb": 8, "connections": 4}
    return Case("warm-up", "floors", "wire", data.kind, data.format, extra=extra)


def run_one(case: Case, place: Place, data: DataSet, deadline: float = DEADLINE) -> dict[str, Any]:
    """Run a case once in a process of its own, with an empty folder of its own that is removed afterwards."""
    counted = wire_counters(place)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        result = _process(job(case, place, data, Path(folder)), place, folder, deadline)
    if counted is not None and "failed" not in result:
        now = wire_counters(place) or counted
        result |= {f"wire_{name}": now[name] - before for name, before in counted.items()}
    names = {"case": case.name, "measure": case.measure, "reader": case.reader, "kind": case.kind}
    return {**names, "format": case.format, "workers": case.workers, "output": case.output, **result}


def line(result: dict[str, Any]) -> str:
    """A result in one line."""
    name = f"{result['case']:52}"
    if "failed" in result:
        return f"{name} FAILED: {result['failed']}"
    shown = {key: value for key, value in result.items() if isinstance(value, (int, float)) and key in SHOWN}
    return name + "  ".join(
        f"{key}={value:,.3g}" if value < 100 else f"{key}={value:,.0f}" for key, value in shown.items()
    )


SHOWN = (
    "seconds", "records_per_second", "mb_per_second", "first_seconds", "cpu_seconds_per_gb", "waiting",
    "prepare_seconds", "over_mb", "same_shard", "spread",
)  # fmt: skip


def _process(argument: str, place: Place, folder: str, deadline: float) -> dict[str, Any]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-W", "ignore", "-m", "benchmarks.case", argument],
        cwd=ROOT,
        env={**inherited, **place.env, "TMPDIR": folder, "HF_HOME": f"{folder}/hf-home"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    began = time.monotonic()
    try:
        with ChildrenMemory(process.pid) as children:
            out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {time.monotonic() - began:.0f} s"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: whatever the case has left running
        process.communicate()
    found = [text for text in out.splitlines() if text.startswith(MARK)]
    if not found:
        tail = " | ".join((err or out).strip().splitlines()[-3:])
        return {"failed": f"ended with {process.returncode} and no result: {tail}"[:500]}
    result: dict[str, Any] = json.loads(found[-1].removeprefix(MARK))
    if "peak_rss" in result:
        result["children_peak_rss"] = children.peak
    return result
