"""A training loop that computes 20 ms a step on one core: how much of its time does it wait for data?

0 workers, so that reading and training share a process; the first step, which begins the reading, is left out.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.case import Case, WrongError
from benchmarks.cases import BATCH
from benchmarks.place import DataSet, Place
from benchmarks.special import Plan
from benchmarks.summary import Summary, markdown, spread

STEP_SECONDS = 0.020
STEPS = 600
"""At most; a smaller set ends before."""
SETS = (
    ("images", "parquet", ("records", "columns", "arrow", "torch")),
    ("images", "tar", ("records",)),
    ("text", "parquet", ("records", "columns", "arrow", "torch")),
    ("text", "jsonl", ("records",)),
    ("text", "jsonl.zst", ("records",)),
    ("text", "tar", ("records",)),
)


def plan(state: Path) -> Plan:
    """Each format and output."""
    return Plan(
        [
            Case(f"loop/{kind}/{form}/{output}", "special.loop", "ours", kind, form, 0, output, BATCH[kind])
            for kind, form, outputs in SETS
            for output in outputs
        ]
    )


def measure(case: Case, place: Place, data: DataSet, folder: Path) -> dict[str, Any]:
    """Run the loop; `waiting` is the share of time in `next()` after the first step.

    A step is 20 ms of the training thread's CPU time, so that a reader that takes its core away makes it longer.
    """
    import torch

    from benchmarks.readers import ours

    torch.set_num_threads(1)
    weights = torch.rand(192, 192)
    dataset = ours.dataset_of(case, place, data)
    dataset.prepare()
    tally = ours.tally_of(case)
    batches = iter(ours.loader_of(case, dataset))
    records, id_sum = tally(next(batches))
    compute(weights)
    steps, waited, computed = 1, 0.0, 0.0
    start = time.perf_counter()
    while steps < STEPS:
        began = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - began
        if batch is None:
            break
        count, total = tally(batch)
        records, id_sum, steps = records + count, id_sum + total, steps + 1
        began = time.perf_counter()
        compute(weights)
        computed += time.perf_counter() - began
    seconds = time.perf_counter() - start
    expected = records * (records - 1) // 2  # unshuffled, on one lane: the first so many
    if id_sum != expected:
        raise WrongError(f"sum of ids: {id_sum:,} came, the first {records:,} have {expected:,}")
    return {
        "records": records,
        "id_sum": id_sum,
        "steps": steps,
        "seconds": seconds,
        "waiting": waited / seconds,
        "step_ms": 1000 * computed / max(1, steps - 1),
    }


def compute(weights: Any) -> None:
    """20 ms of matrix products on one thread; they let go of the GIL, as training does."""
    end = time.thread_time() + STEP_SECONDS
    product = weights
    while time.thread_time() < end:
        product = (product @ weights).clamp_(-1, 1)


def table(summary: Summary) -> str:
    """Waiting by case."""
    rows = [
        [
            case.removeprefix("loop/"),
            f"{runs[0]['steps']}",
            spread(runs, "waiting", "{:.2%}"),
            spread(runs, "step_ms", "{:.1f}"),
        ]
        for case, runs in summary.items()
    ]
    return markdown(["case", "steps", "waiting for data", "ms a step"], rows)
