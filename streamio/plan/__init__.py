"""The order of an epoch as pure functions of plain values: no I/O, no torch, no global state."""

from streamio.plan.grid import Grid
from streamio.plan.indexed import IndexedPlan, IndexedSplits, Lane
from streamio.plan.random import generator, permutation
from streamio.plan.streamed import START, Cursor, Place, StreamedPlan, StreamedSplits

__all__ = [
    "START",
    "Cursor",
    "Grid",
    "IndexedPlan",
    "IndexedSplits",
    "Lane",
    "Place",
    "StreamedPlan",
    "StreamedSplits",
    "generator",
    "permutation",
]
