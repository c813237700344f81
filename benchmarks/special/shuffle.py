"""Shuffling: what it costs in speed, and how well it mixes beside a WebDataset buffer of the same memory."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Case, check
from benchmarks.cases import BATCH, reader
from benchmarks.data import SHARDS
from benchmarks.measure import peak_rss
from benchmarks.place import DataSet, Place
from benchmarks.readers import Opened
from benchmarks.special import Plan
from benchmarks.summary import Summary, markdown, spread

SHUFFLE_BYTES = 64 << 20
SPEED = (("images", "parquet"), ("images", "tar"), ("text", "parquet"), ("text", "jsonl"))
MIXING = (("images", "parquet", "ours"), ("images", "tar", "ours"), ("images", "tar", "wds"),
          ("text", "parquet", "ours"), ("text", "tar", "ours"), ("text", "tar", "wds"))  # fmt: skip
POINTS = 2000
"""Of each order that are kept for the plot."""


def plan(state: Path) -> Plan:
    """Speed with and without, then the orders."""
    cases = []
    for kind, form in SPEED:
        plain = reader("ours", kind, form, 0)
        cases += [plain, replace(plain, name=f"{plain.name}/shuffled", extra={"shuffle": True})]
    for kind, form, name in MIXING:
        label = f"mixing/{kind}/{form}/{'streamio' if name == 'ours' else 'webdataset'}"
        extra = {"shuffle": True}
        cases.append(Case(label, "special.shuffle", name, kind, form, batch=BATCH[kind], extra=extra))
    return Plan(cases)


def measure(case: Case, place: Place, data: DataSet, folder: Path) -> dict[str, Any]:
    """Read one shuffled epoch, and look at the order.

    `same_shard` is the probability that two neighbours come from one shard, `spread` the standard deviation of the
    positions of a shard's records as a share of the epoch (0.289 where they are all over it, and the mean over the
    shards is told), `moved` the mean distance from the stored to the delivered position as a share of the epoch
    (0.333 where nothing is left of the order).
    """
    opened, ids_of = _opened(case, place, data)
    ids: list[int] = []
    for batch in opened.batches:
        ids += ids_of(batch)
    check(data, len(ids), sum(ids))
    return {"records": len(ids), "id_sum": sum(ids), "peak_rss": peak_rss(), **mixing(ids)}


def mixing(ids: list[int]) -> dict[str, Any]:
    """Figures of an order of the ids 0 to n - 1, which lie in shards one after the other."""
    order = np.asarray(ids)
    count = len(order)
    bounds = np.arange(1, SHARDS) * count // SHARDS
    shard = np.searchsorted(bounds, order, side="right")
    place = np.arange(count)
    spreads = [np.std(place[shard == number]) for number in range(SHARDS)]
    shown = np.linspace(0, count - 1, min(POINTS, count)).astype(int)
    return {
        "same_shard": float(np.mean(shard[1:] == shard[:-1])),
        "spread": float(np.mean(spreads) / count),
        "moved": float(np.mean(np.abs(order - place)) / count),
        "order": order[shown].tolist(),
    }


def _opened(case: Case, place: Place, data: DataSet) -> tuple[Opened, Any]:
    """The reader, shuffled within SHUFFLE_BYTES, and what tells a batch's ids."""
    if case.reader == "ours":
        from benchmarks.readers import ours

        loader = ours.loader_of(case, ours.dataset_of(case, place, data, shuffle_bytes=SHUFFLE_BYTES))
        opened = Opened(loader, ours.tally_of(case))
    else:
        from benchmarks.readers import wds

        buffer = int(SHUFFLE_BYTES / (data.payload_bytes / data.records))
        opened = wds.open_batches(case, place, data, Path(), buffer=buffer)
    if case.format != "tar":
        return opened, lambda batch: [row["id"] for row in batch]
    return opened, lambda batch: [int(row["__key__"]) for row in batch]


def table(summary: Summary) -> str:
    """Speed, then mixing."""
    speed, mixed = [], []
    for case, runs in summary.items():
        if case.startswith("mixing/"):
            figures = [spread(runs, name, "{:.3f}") for name in ("same_shard", "spread", "moved")]
            peak = spread(runs, "peak_rss", "{:.0f}", 1e-6)
            mixed.append([case.removeprefix("mixing/"), *figures, peak])
        elif case.endswith("/shuffled") and (plain := summary.get(case.removesuffix("/shuffled"))):
            slower = 1 - statistics.median(r["records_per_second"] for r in runs) / statistics.median(
                r["records_per_second"] for r in plain
            )
            rates = [spread(each, "records_per_second", "{:,.0f}") for each in (plain, runs)]
            speed.append([case.removesuffix("/w0/shuffled"), *rates, f"{slower:.0%}"])
    perfect = f"A perfect shuffle has {1 / SHARDS:.3f}, 0.289 and 0.333.\n"
    head = ["case", "neighbours of one shard", "spread of a shard", "distance moved", "peak memory, MB"]
    return "\n".join(
        [
            markdown(["case", "in order, records/s", "shuffled, records/s", "slower by"], speed),
            markdown(head, mixed),
            perfect,
        ]
    )
