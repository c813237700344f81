"""Index: making it against reading once with one worker; start-up, and a resume at half an epoch, with it and without.

The index lies in the state folder, not beside the data, where the other measurements would find it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.case import Case, WrongError, check
from benchmarks.cases import BATCH
from benchmarks.place import DataSet, Place
from benchmarks.special import Plan
from benchmarks.special.resume import SETS
from benchmarks.summary import Summary, markdown, spread

WHATS = ("build", "read", "with", "without")


def plan(state: Path) -> Plan:
    """Each set: made anew, read once, and started with the index and without."""
    before: list[Case] = []
    cases: list[Case] = []
    for kind, form in SETS:
        for what in ("keep", *WHATS):
            told = {"what": what, "state": str(state / f"{kind}-{form}.index")}
            workers = 1 if what == "read" else 0
            name = f"index/{kind}/{form}/{what}"
            case = Case(name, "special.index", "ours", kind, form, workers, batch=BATCH[kind], extra=told)
            (before if what == "keep" else cases).append(case)
    return Plan(cases, before)


def measure(case: Case, place: Place, data: DataSet, folder: Path) -> dict[str, Any]:
    """Make the index, read all, or resume at half an epoch."""
    what, kept = case.extra["what"], Path(case.extra["state"])
    if what in ("keep", "build"):
        return _build(place, data, kept if what == "keep" else folder / "made.index")
    from benchmarks.readers import ours

    began = time.perf_counter()
    dataset = ours.dataset_of(case, place, data, index=str(kept) if what == "with" else None)
    dataset.prepare()
    prepared = time.perf_counter() - began
    loader, tally = ours.loader_of(case, dataset), ours.tally_of(case)
    if what == "read":
        counts = [tally(batch) for batch in loader]
        check(data, sum(count for count, _ in counts), sum(total for _, total in counts))
        return {"records": data.records, "id_sum": data.id_sum, "seconds": time.perf_counter() - began}
    result: dict[str, Any] = {"records": 0, "id_sum": 0, "prepare_seconds": prepared}
    if what == "with":
        result |= _resumed(loader, tally, data)
    return result


def _build(place: Place, data: DataSet, out: Path) -> dict[str, Any]:
    from streamio import build_index

    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    url = place.url(f"{data.prefix}*.{data.format}")
    built = build_index(url, out, storage_options=place.storage_options)
    if built.records != data.records:
        raise WrongError(f"{built.records:,} records were counted, there are {data.records:,}")
    return {"records": built.records, "id_sum": 0, "seconds": built.seconds, "index_bytes": out.stat().st_size}


def _resumed(loader: Any, tally: Any, data: DataSet) -> dict[str, Any]:
    """Time and bytes from a status in the middle to the next batch."""
    state = json.loads(loader.state_dict()["streamio"])
    state["k"] = state["step"] = len(loader) // 2
    loader.load_state_dict({"streamio": json.dumps(state)})
    began = time.perf_counter()
    count, total = tally(next(iter(loader)))
    first = state["k"] * count
    if total != count * first + count * (count - 1) // 2:
        raise WrongError(f"the batch at record {first:,} has ids that sum to {total:,}")
    return {"resume_seconds": time.perf_counter() - began}


def table(summary: Summary) -> str:
    """A line for each set."""
    rows = []
    for case in summary:
        name, _, what = case.rpartition("/")
        found = {each: summary.get(f"{name}/{each}", []) for each in WHATS}
        if what == "build":
            rows.append(
                [
                    name.removeprefix("index/"),
                    spread(found["build"], "seconds", "{:.2f}"),
                    spread(found["read"], "seconds", "{:.2f}"),
                    spread(found["build"], "index_bytes", "{:,.0f}"),
                    spread(found["with"], "prepare_seconds", "{:.3f}"),
                    spread(found["without"], "prepare_seconds", "{:.3f}"),
                    spread(found["with"], "resume_seconds", "{:.3f}"),
                ]
            )
    names = [
        "set",
        "made, s",
        "read once by a worker, s",
        "bytes",
        "start, s",
        "start without, s",
        "next batch at half, s",
    ]
    return markdown(names, rows)
