"""Measurements beside the main table: a module each, with `plan(state)` and `table(summary)`.

Those that the main table's `throughput` does not serve have a `measure` of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.case import Case


@dataclass(frozen=True)
class Plan:
    """What a measurement runs.

    Attributes:
        cases: Run and repeated, interleaved.
        before: Run once before, for what they leave in the state folder.
    """

    cases: list[Case]
    before: list[Case] = field(default_factory=list)
