"""Steering a run by hand: how a place is moved on without reading, and which splits are left out from there on.

Pure functions of places; what they mean for a run is the loader's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamio.formats.base import Bad
from streamio.loader.spec import Start
from streamio.observe.drops import LEFT_OUT
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.loader.spec import Spec


def moved_on(start: Start, count: int, steps: Callable[[Start], int] | None) -> Start:
    """The place some global batches on.

    Args:
        start: The place.
        count: How many batches.
        steps: Global batches of the epoch of a place, at least 1; None where it is endless.
    """
    while steps is not None and start.k + count >= (ends := steps(start)):
        count -= ends - start.k
        start = Start(start.epoch + 1)
    return replace(start, k=start.k + count)


def left_out(spec: Spec, urls: Collection[str]) -> NDArray[np.int64]:
    """The splits of the shards with these URLs, int64, rising; those that are not there any more count for nothing."""
    if not urls:
        return np.empty(0, np.int64)
    wanted = set(urls)
    shards = [number for number, shard in enumerate(spec.shards) if shown(shard.url) in wanted]
    return np.flatnonzero(np.isin(spec.splits.shard, shards))


def why() -> Bad:
    """What stands for each record of them."""
    return Bad(*LEFT_OUT, "")
