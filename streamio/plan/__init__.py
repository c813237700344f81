"""The order of an epoch as pure functions of plain values: no I/O, no torch, no global state."""

from streamio.plan.grid import Grid
from streamio.plan.indexed import IndexedPlan, IndexedSplits
from streamio.plan.lane import Lane, Stretch, runs
from streamio.plan.mixing import MixedPlan, Stop
from streamio.plan.random import generator, permutation
from streamio.plan.rest import Generation
from streamio.plan.streamed import (
    START,
    BegunWindow,
    Cursor,
    Place,
    Segment,
    StreamedPlan,
    StreamedRest,
    StreamedSplits,
)

__all__ = [
    "START",
    "BegunWindow",
    "Cursor",
    "Generation",
    "Grid",
    "IndexedPlan",
    "IndexedSplits",
    "Lane",
    "MixedPlan",
    "Place",
    "Segment",
    "Stop",
    "StreamedPlan",
    "StreamedRest",
    "StreamedSplits",
    "Stretch",
    "generator",
    "permutation",
    "runs",
]
