"""Parts of an index that is being made, beside it: what a run that is broken off leaves for the next one to take up."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from streamio.errors import FormatError
from streamio.index.table import Entry, IndexTable
from streamio.storage import objects
from streamio.storage.settings import ReadSettings

logger = logging.getLogger(__name__)


class Parts:
    """The parts beside one index: `index.parquet.part-<hash>`.

    Args:
        url: The index.
        settings: How to get at it.
    """

    def __init__(self, url: str, settings: ReadSettings) -> None:
        self._folder, _, name = url.rpartition("/")
        self._prefix = f"{name}.part-"
        self._settings = settings

    def write(self, entries: Sequence[Entry]) -> None:
        """Write one, whole or not at all."""
        data = IndexTable.of(entries).to_bytes()
        url = f"{self._folder}/{self._prefix}{hashlib.sha256(data).hexdigest()[:16]}"
        objects.put(url, data, self._settings.storage_options, retry=self._settings.retry)

    def read(self) -> list[IndexTable]:
        """All that are there and whole."""
        found = []
        for name in self._names():
            url = f"{self._folder}/{name}"
            data = objects.get(url, self._settings.storage_options, retry=self._settings.retry)
            try:
                found += [IndexTable.from_bytes(data, "", url)] if data is not None else []
            except FormatError as error:
                logger.warning("A part of an index is not taken up: %s", error)
        return found

    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._names())

    def remove(self) -> None:
        """Remove all."""
        for name in self._names():
            objects.remove(f"{self._folder}/{name}", self._settings.storage_options, retry=self._settings.retry)

    def _names(self) -> list[str]:
        names = objects.ls(self._folder, self._settings.storage_options, retry=self._settings.retry)
        return [name for name in names if name.startswith(self._prefix)]
