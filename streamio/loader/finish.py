"""The last step from a decoded record to what the user gets: where it came from, and the user's own map."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamio.errors import DropRecord
from streamio.formats.base import Bad
from streamio.plan import generator
from streamio.storage.faults import shown

if TYPE_CHECKING:
    from streamio.formats.base import Record
    from streamio.loader.spec import Spec


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a map asks for randomness of its own by a parameter named `rng`."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins without a signature
        return False


class Finisher:
    """Adds `__shard__` and `__index__` where asked, and applies the user's map.

    Args:
        spec: The data set.
        epoch: The epoch, which a map's randomness is keyed by.
    """

    def __init__(self, spec: Spec, epoch: int) -> None:
        self._map = spec.map
        self._provenance = spec.provenance
        self._key = ("map", spec.seed, epoch)
        #: Whether there is nothing to do.
        self.idle = spec.map is None and not spec.provenance
        self._rng = spec.map is not None and takes_rng(spec.map)

    def __call__(self, record: Record, url: str, index: int, slot: tuple[int, int]) -> Any:
        """The finished value, or `Bad` where the map leaves the record out.

        Args:
            record: The decoded record; it is changed in place.
            url: Its shard.
            index: Its `__index__`.
            slot: What names it for good: split and number there.
        """
        if self._provenance:
            record["__shard__"] = url
            record["__index__"] = index
        if self._map is None:
            return record
        try:
            value = self._map(record, rng=generator(*self._key, *slot)) if self._rng else self._map(record)
        except DropRecord as drop:
            return Bad(drop.reason, drop.message, f"record {index}")
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"Raised by the map given to StreamingDataset, for {shown(url)} at record {index}.")
            raise
        if value is None:
            raise TypeError("map returned None: return the record, or raise streamio.DropRecord to leave it out")
        return value
