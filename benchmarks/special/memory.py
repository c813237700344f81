"""Peak memory over three epochs with 0 workers, against an idle process with the same imports."""

from __future__ import annotations

import contextlib
import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.case import Case, check
from benchmarks.cases import BATCH
from benchmarks.measure import peak_rss
from benchmarks.place import DataSet, Place
from benchmarks.special import Plan
from benchmarks.summary import Summary, markdown, spread

EPOCHS = 3
SETS = (("images", "parquet"), ("images", "tar"), ("text", "parquet"), ("text", "jsonl"))
PREFETCH_BYTES, SHUFFLE_BYTES = 128 << 20, 64 << 20
"""The defaults, given by name so that the budget is known."""


def plan(state: Path) -> Plan:
    """Shuffled and not, and the idle process; before that, what reading imports is noted."""
    known = {"imports": str(state / "memory-imports.json")}
    before = [Case("memory/imports", "special.memory", "imports", "text", "parquet", batch=256, extra=known)]
    cases = [Case("memory/idle", "special.memory", "idle", "text", "parquet", extra=known)]
    for kind, form in SETS:
        for shuffle in (False, True):
            name = f"memory/{kind}/{form}/{'shuffled' if shuffle else 'in order'}"
            extra = {"shuffle": shuffle}
            cases.append(Case(name, "special.memory", "ours", kind, form, batch=BATCH[kind], extra=extra))
    return Plan(cases, before)


def measure(case: Case, place: Place, data: DataSet, folder: Path) -> dict[str, Any]:
    """Read three epochs, or only import; `epoch_rss` is the peak after each epoch."""
    if case.reader == "idle":
        _import_all(json.loads(Path(case.extra["imports"]).read_text()))
        return {"records": 0, "id_sum": 0, "peak_rss": peak_rss()}
    from benchmarks.readers import ours

    if case.reader == "imports":
        for _ in ours.open_batches(case, place, data, folder).batches:
            pass
        path = Path(case.extra["imports"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(list(sys.modules)))  # in the order in which they were imported
        return {"records": 0, "id_sum": 0}
    dataset = ours.dataset_of(case, place, data, prefetch_bytes=PREFETCH_BYTES, shuffle_bytes=SHUFFLE_BYTES)
    loader = ours.loader_of(case, dataset)
    tally = ours.tally_of(case)
    records = id_sum = 0
    peaks = []
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            count, total = tally(batch)
            records, id_sum = records + count, id_sum + total
        peaks.append(peak_rss())
    check(data, records, id_sum, EPOCHS)
    budget = PREFETCH_BYTES + (SHUFFLE_BYTES if case.extra["shuffle"] else 0)
    return {"records": records, "id_sum": id_sum, "peak_rss": peak_rss(), "epoch_rss": peaks, "budget": budget}


def _import_all(names: list[str]) -> None:
    """Import modules by name; some are made by their parents and can't be asked for."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def table(summary: Summary) -> str:
    """What each took over the idle process, and over its budget."""
    idle = summary.get("memory/idle")
    if not idle:
        return "The idle process is missing.\n"
    base = statistics.median(run["peak_rss"] for run in idle)
    rows = [["idle process", spread(idle, "peak_rss", "{:.0f}", 1e-6), "", "", "", ""]]
    for case, runs in summary.items():
        if case == "memory/idle":
            continue
        peak = statistics.median(run["peak_rss"] for run in runs)
        by_epoch = [statistics.median(run["epoch_rss"][n] for run in runs) / 1e6 for n in range(EPOCHS)]
        rows.append(
            [
                case.removeprefix("memory/"),
                spread(runs, "peak_rss", "{:.0f}", 1e-6),
                " / ".join(f"{value:.0f}" for value in by_epoch),
                f"{(peak - base) / 1e6:.0f}",
                f"{runs[0]['budget'] / 1e6:.0f}",
                f"{(peak - base - runs[0]['budget']) / 1e6:.0f}",
            ]
        )
    names = ["case", "peak, MB", "after epoch 1 / 2 / 3, MB", "over idle, MB", "budget, MB", "over budget, MB"]
    return markdown(names, rows)
