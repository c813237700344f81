"""Plots from results: rates of all readers with their spread, and the orders of shuffles. Needs matplotlib."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.report import KIND, wire_floor
from benchmarks.summary import Summary, by_case, median

OURS, PEER = "#1f6fb4", "#b9c2cc"


def plot(found: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what there is to draw of one file of results.

    Returns:
        The files that were written, SVG.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "streamio", "font.size": 9})
    summary = by_case(found["results"])
    folder.mkdir(parents=True, exist_ok=True)
    if found["what"] == "run":
        return _rates(summary, folder, found["profile"])
    if found["what"] == "shuffle":
        return _orders(summary, folder)
    return []


def _rates(summary: Summary, folder: Path, profile: str) -> list[Path]:
    from matplotlib import pyplot as plt

    written = []
    floors = {case: runs for case, runs in summary.items() if runs[0]["measure"] == "floors"}
    readers = [runs for runs in summary.values() if runs[0]["measure"] == "throughput"]
    for kind in KIND:
        numbers = sorted({runs[0]["workers"] for runs in readers if runs[0]["kind"] == kind})
        if not numbers:
            continue
        figure, axes = plt.subplots(1, len(numbers), figsize=(6 * len(numbers), 6), squeeze=False)
        for axis, workers in zip(axes[0], numbers, strict=True):
            chosen = [runs for runs in readers if (runs[0]["kind"], runs[0]["workers"]) == (kind, workers)]
            chosen.sort(key=lambda runs: median(runs, "records_per_second") or 0)
            values = [[run["records_per_second"] for run in runs] for runs in chosen]
            middles = [statistics.median(each) for each in values]
            errors = [
                [m - min(v) for m, v in zip(middles, values, strict=True)],
                [max(v) - m for m, v in zip(middles, values, strict=True)],
            ]
            names = [", ".join(reversed(runs[0]["case"].split("/")[1:3])) for runs in chosen]
            colours = [OURS if runs[0]["reader"] == "ours" else PEER for runs in chosen]
            axis.barh(names, middles, xerr=errors, color=colours, error_kw={"lw": 0.8})
            floor = wire_floor(floors, kind, "parquet")
            if floor is not None:
                axis.axvline(median(floor, "records_per_second") or 0, color="k", ls=":", lw=1, label="wire (parquet)")
                axis.legend(loc="lower right")
            axis.set_title(f"{KIND[kind]}, {workers} workers, {profile}")
            axis.set_xlabel("records/s, median and least to most")
        figure.tight_layout()
        written.append(folder / f"{profile}-{kind}.svg")
        figure.savefig(written[-1], metadata={"Date": None})
        plt.close(figure)
    return written


def _orders(summary: Summary, folder: Path) -> list[Path]:
    from matplotlib import pyplot as plt

    cases = [(case, runs[0]) for case, runs in summary.items() if case.startswith("mixing/")]
    if not cases:
        return []
    figure, axes = plt.subplots(2, -(-len(cases) // 2), figsize=(3.4 * -(-len(cases) // 2), 7), squeeze=False)
    for axis, (case, run) in zip(axes.flat, cases, strict=False):
        total = run["records"]
        positions = [number / len(run["order"]) for number in range(len(run["order"]))]
        axis.plot(positions, [number / total for number in run["order"]], ".", ms=1.2, color=OURS, rasterized=True)
        axis.set_title(
            f"{case.removeprefix('mixing/')}\nneighbours {run['same_shard']:.2f}, spread {run['spread']:.2f}"
        )
        axis.set_xlabel("place in the epoch")
        axis.set_ylabel("place in the bucket")
    for axis in axes.flat[len(cases) :]:
        axis.set_visible(False)
    figure.tight_layout()
    path = folder / "shuffle.svg"
    figure.savefig(path, metadata={"Date": None}, dpi=110)  # of the points, of which there are many
    plt.close(figure)
    return [path]
