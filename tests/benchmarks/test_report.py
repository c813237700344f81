from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import report
from benchmarks.special.shuffle import mixing
from benchmarks.summary import spread


def run(case: str, measure: str, repeat: int, seconds: float, **more: Any) -> dict[str, Any]:
    kind, form, _, last = case.split("/")
    workers = int(last[1:]) if measure == "throughput" else 0
    return {
        "case": case, "measure": measure, "reader": "x", "kind": kind, "format": form, "workers": workers,
        "output": "records", "repeat": repeat, "records": 1000, "seconds": seconds, "first_seconds": 0.1,
        "records_per_second": 1000 / seconds, "mb_per_second": 1.0, "cpu_seconds_per_gb": 1.0, "peak_rss": 10**8,
        **more,
    }  # fmt: skip


FOUND: dict[str, Any] = {
    "what": "run", "profile": "loopback", "scale": 1.0, "repeats": 3, "date": "2026-01-02T03:04:05+00:00",
    "machine": {"cores": 2, "processor": "P", "memory_gb": 4, "system": "Linux 6", "python": "3.11.1"},
    "versions": {"torch": "2.13.0"}, "sets": [{"kind": "text", "format": "jsonl", "records": 1000, "mb": 1.5}],
    "results": [
        *[run("text/jsonl/floor-wire/4MBx2", "floors", n, s) for n, s in enumerate((4.0, 4.0, 4.0), 1)],
        *[run("text/jsonl/floor-wire/8MBx4", "floors", n, s) for n, s in enumerate((1.0, 1.0, 9.0), 1)],
        *[run("text/jsonl/floor-decode/orjson", "floors", n, 0.5) for n in (1, 2, 3)],
        *[run("text/jsonl/streamio/w0", "throughput", n, s) for n, s in enumerate((2.0, 1.0, 4.0), 1)],
        *[run("text/jsonl/other/w0", "throughput", n, 1.0) for n in (1, 2, 3)],
        {"case": "text/jsonl/broken/w0", "repeat": 1, "failed": "ValueError: no | way"},
    ],
}  # fmt: skip


def test_tables_show_medians_with_spread_against_the_best_floors() -> None:
    text = report.report(FOUND)
    line = next(line for line in text.splitlines() if line.startswith("| streamio, jsonl"))
    assert "500 (250..1,000)" in line
    assert [cell.strip() for cell in line.split("|")][4:6] == ["0.50", "0.25"]


def test_the_faster_reader_stands_first() -> None:
    text = report.report(FOUND)
    assert text.index("| other, jsonl") < text.index("| streamio, jsonl")


def test_failures_are_shown_with_their_reason() -> None:
    assert "| text/jsonl/broken/w0 | 1 | ValueError: no / way |" in report.report(FOUND)


def test_the_heading_tells_where_when_and_with_what() -> None:
    text = report.report(FOUND)
    for part in ("2026-01-02", "`loopback`", "2 cores (P)", "torch 2.13.0", "medians of 3", "text/jsonl 1.5 MB"):
        assert part in text


def test_tables_are_put_between_their_markers_and_nowhere_else() -> None:
    document = "a\n<!-- results run loopback -->\nold\n<!-- end run loopback -->\nz\n"
    once = report.insert(document, "run loopback", "| new \\1 |\n")
    assert once == "a\n<!-- results run loopback -->\n\n| new \\1 |\n\n<!-- end run loopback -->\nz\n"
    assert report.insert(once, "run loopback", "| new \\1 |\n") == once
    with pytest.raises(ValueError, match="results run cloud"):
        report.insert(document, "run cloud", "")


def test_a_figure_that_no_run_has_is_a_dash() -> None:
    assert spread([{"a": 1.0}], "b", "{}") == "-"


def test_mixing_tells_order_from_chaos() -> None:
    ordered, dealt = mixing(list(range(3200))), mixing(np.random.default_rng(0).permutation(3200).tolist())
    assert ordered["same_shard"] == pytest.approx(1, abs=0.01)
    assert ordered["moved"] == 0
    assert ordered["spread"] == pytest.approx(0.289 / 32, rel=0.02)
    assert dealt["same_shard"] < 0.1
    assert dealt["spread"] == pytest.approx(0.289, rel=0.05)
