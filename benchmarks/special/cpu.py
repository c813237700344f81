"""Client CPU seconds a GB of records, children included: streamio by each engine, and the peers, with 0 workers."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.case import Case
from benchmarks.cases import READERS, reader
from benchmarks.special import Plan
from benchmarks.summary import Summary, markdown, spread

ENGINES = ("obstore", "fsspec")


def plan(state: Path) -> Plan:
    """All readers of the main table, streamio once for each engine; and the wire's floor."""
    cases = []
    for (kind, form), names in READERS.items():
        for name in names:
            if name == "ours":
                cases += [reader(name, kind, form, 0, engine=engine) for engine in ENGINES]
            else:
                cases.append(reader(name, kind, form, 0))
        if "ours" in names:
            extra = {"range_mb": 8, "connections": 4}
            cases.append(Case(f"{kind}/{form}/floor-wire/8MBx4", "floors", "wire", kind, form, extra=extra))
    return Plan(cases)


def table(summary: Summary) -> str:
    """The cheapest first, by kind."""
    parts = []
    for kind in ("images", "text"):
        found = {case: runs for case, runs in summary.items() if case.startswith(f"{kind}/")}
        order = sorted(found, key=lambda case: statistics.median(run["cpu_seconds_per_gb"] for run in found[case]))
        rows = [
            [
                case.removeprefix(f"{kind}/").removesuffix("/w0"),
                spread(found[case], "cpu_seconds_per_gb", "{:.2f}"),
                spread(found[case], "mb_per_second", "{:,.0f}"),
            ]
            for case in order
        ]
        parts.append(markdown([kind, "CPU s a GB", "MB/s"], rows))
    return "\n".join(parts)
