"""Results by case, medians with their spread, and tables of markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Runs = list[dict[str, Any]]
Summary = dict[str, Runs]
"""The runs of each case that did not fail, in order of the first."""


def by_case(results: Runs) -> Summary:
    """The runs that came to their end."""
    found: Summary = {}
    for result in results:
        if "failed" not in result and result["repeat"] > 0:
            found.setdefault(result["case"], []).append(result)
    return found


def median(runs: Runs, name: str) -> float | None:
    """The median of a figure; None where no run has it."""
    values = [run[name] for run in runs if run.get(name) is not None]
    return statistics.median(values) if values else None


def spread(runs: Runs, name: str, form: str, factor: float = 1.0) -> str:
    """`median (least..most)`; a dash where no run has it."""
    values = [run[name] * factor for run in runs if run.get(name) is not None]
    if not values:
        return "-"
    middle = form.format(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({form.format(min(values))}..{form.format(max(values))})"


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column to the left, figures to the right."""
    head = [" | ".join(names), " | ".join(["---", *["---:"] * (len(names) - 1)])]
    return "".join(f"| {row} |\n" for row in [*head, *(" | ".join(row) for row in rows)])
