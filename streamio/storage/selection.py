"""Which files of a folder or glob are data: not the hidden ones, the markers, and what is of no known format.

It judges names and sizes alone and does no I/O.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase

from streamio.storage.faults import shown
from streamio.storage.pages import Info
from streamio.storage.place import Place
from streamio.storage.urls import name_of

logger = logging.getLogger(__name__)

_OURS = ("streamio.json", "streamio.superseded.json", "streamio-drops.jsonl")  # of checkpoints below the data
_SHARD_LISTS = "streamio-shards-"
_SOME = 3
"""Examples kept for messages."""


class Selection:
    """Picks the shards out of one listing, and remembers what it left out.

    Attributes:
        taken: How many files were taken.
        hidden: Some paths of hidden and marker files.
        unknown: Some paths of files of unknown format.
        folders: Some paths of folders that a glob matched.
    """

    def __init__(self, place: Place, accepts: Callable[[str], bool] | None) -> None:
        self.taken = 0
        self.hidden: list[str] = []
        self.unknown: list[str] = []
        self.folders: list[str] = []
        self._place = place
        self._accepts = accepts
        self._root = len(place.root)
        # `_x*` or `.x*` in a glob asks for such names: what a user wrote is never hidden.
        pattern = place.path[self._root :] if place.glob else ""
        self._asked_for = [part for part in pattern.split("/") if part.startswith(("_", "."))]
        self._left_out: Counter[str] = Counter()

    def takes(self, path: str, info: Info) -> bool:
        """Whether the file at this path of the listing is a shard."""
        if info.get("type") == "directory":
            self._remember(self.folders, path)
            return False
        reason = self._reason(path, info)
        if reason is None:
            self.taken += 1
            return True
        self._left_out[reason] += 1
        self._remember(self.unknown if reason == "of unknown format" else self.hidden, path)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("left out, %s: %s", reason, shown(self._place.url_of(path)))
        return False

    def tell(self) -> None:
        """Log how many files were left out."""
        if self._left_out:
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(self._left_out.items()))
            logger.info("%s: %d files taken; left out: %s", shown(self._place.url), self.taken, told)

    def _reason(self, path: str, info: Info) -> str | None:
        """Why it is no shard."""
        parts = path[self._root :].strip("/").split("/")
        if any(self._is_hidden(part) for part in parts):
            return "hidden"
        name = name_of(self._place.url_of(path)) if self._place.http else parts[-1]
        if path.endswith("/") or name.endswith("_$folder$"):
            return "placeholders of folders"
        if name.endswith(".crc"):
            return "checksum files"
        if name in _OURS or name.startswith(_SHARD_LISTS):
            return "statuses of runs"
        empty = info.get("size") == 0
        if self._accepts is None:
            return "empty without a suffix" if empty and "." not in name else None
        if self._accepts(name or path):
            return None
        return "empty and of unknown format" if empty else "of unknown format"

    def _is_hidden(self, part: str) -> bool:
        # `_year=2024` is a partition.
        marked = part.startswith(".") or (part.startswith("_") and "=" not in part)
        return marked and not any(fnmatchcase(part, pattern) for pattern in self._asked_for)

    @staticmethod
    def _remember(some: list[str], path: str) -> None:
        if len(some) < _SOME:
            some.append(path)
