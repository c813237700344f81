"""Resuming at half an epoch: time to the next record, against the time to the first record of a cold start.

A first process runs to the half and saves `loader.state_dict()`; then cold starts and resumes take turns, each in a
fresh process. Listing and footers (`dataset.prepare()`) are timed on their own.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.case import Case, WrongError
from benchmarks.cases import BATCH
from benchmarks.place import DataSet, Place
from benchmarks.special import Plan
from benchmarks.summary import Summary, markdown, spread

SETS = (
    ("images", "parquet"), ("images", "tar"), ("text", "parquet"), ("text", "jsonl"), ("text", "jsonl.zst"),
    ("text", "tar"),
)  # fmt: skip


def plan(state: Path) -> Plan:
    """Cold and resumed, shuffled and not."""
    before, cases = [], []
    for kind, form in SETS:
        for shuffle in (False, True):
            name = f"resume/{kind}/{form}/{'shuffled' if shuffle else 'in order'}"
            extra = {"shuffle": shuffle, "state": str(state / f"{name.replace('/', '-').replace(' ', '-')}.json")}

            def case(what: str, name: str = name, extra: dict[str, Any] = extra) -> Case:
                kind, form = name.split("/")[1:3]
                told = {**extra, "what": what}
                return Case(f"{name}/{what}", "special.resume", "ours", kind, form, batch=BATCH[kind], extra=told)

            before.append(case("save"))
            cases += [case("cold"), case("resumed")]
    return Plan(cases, before)


def measure(case: Case, place: Place, data: DataSet, folder: Path) -> dict[str, Any]:
    """Save a state, or time the first batch with or without it."""
    from benchmarks.readers import ours

    path, what = Path(case.extra["state"]), case.extra["what"]
    dataset = ours.dataset_of(case, place, data)
    tally = ours.tally_of(case)
    began = time.perf_counter()
    dataset.prepare()
    prepared = time.perf_counter()
    loader = ours.loader_of(case, dataset)
    if what == "save":
        return _save(loader, tally, data, path)
    if what == "resumed":
        saved = json.loads(path.read_text())
        loader.load_state_dict(saved["state"])
    batches = iter(loader)
    batch = next(batches)
    seconds = time.perf_counter() - prepared  # the iterator is still held: to end it would count
    count, total = tally(batch)
    if what == "resumed" and [count, total] != saved["next"]:
        raise WrongError(f"the batch after the resume has {[count, total]}, it had {saved['next']} without a break")
    return {"records": count, "id_sum": total, "seconds": seconds, "prepare_seconds": prepared - began}


def _save(loader: Any, tally: Any, data: DataSet, path: Path) -> dict[str, Any]:
    records = id_sum = 0
    batches = iter(loader)
    while records < data.records // 2:
        count, total = tally(next(batches))
        records, id_sum = records + count, id_sum + total
    state = loader.state_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"state": state, "next": tally(next(batches))}))
    return {"records": records, "id_sum": id_sum}


def table(summary: Summary) -> str:
    """Cold against resumed."""
    rows = []
    for case, runs in summary.items():
        name, _, what = case.rpartition("/")
        cold = summary.get(f"{name}/cold")
        if what != "resumed" or not cold:
            continue
        ratio = statistics.median(r["seconds"] for r in runs) / statistics.median(r["seconds"] for r in cold)
        rows.append(
            [
                name.removeprefix("resume/"),
                spread(cold, "seconds", "{:.3f}"),
                spread(runs, "seconds", "{:.3f}"),
                f"{ratio:.2f}",
                spread([*runs, *cold], "prepare_seconds", "{:.3f}"),
            ]
        )
    return markdown(["case", "cold start, s", "resume, s", "ratio", "listing and footers, s (not counted)"], rows)
