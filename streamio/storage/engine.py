"""What reads one range of one shard in one attempt, and which engine does so for which shard.

obstore reads s3:// and gs://; fsspec reads everything else, and what obstore can't be told. No retries here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator
from typing import Protocol

from streamio.storage.carry import CannotCarryError, carry
from streamio.storage.faults import shown
from streamio.storage.settings import ReadSettings
from streamio.storage.shards import Shard

logger = logging.getLogger(__name__)
_told: set[str] = set()


class Engine(Protocol):
    """A read client. All calls run on the process's io loop."""

    def get(self, shard: Shard, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """One attempt to read [start, stop) of a shard, in chunks; never more, perhaps less.

        Raises:
            ShortAnswerError: The answer is for another range.
            ChangedError: The object is not the listed one.
            Exception: Whatever the client raises.
        """
        ...

    async def refresh(self) -> None:
        """Forget credentials that have run out; the next attempt gets new ones."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Engines:
    """The engines of one reader, each made when the first shard needs it.

    Args:
        settings: How to read.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._made: dict[str, Engine] = {}
        self._tellable: dict[str, bool] = {}

    def of(self, shard: Shard) -> Engine:
        """The engine that reads this shard."""
        name = self._name(shard.url)
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    async def refresh(self) -> None:
        """Forget all credentials."""
        for engine in self._made.values():
            await engine.refresh()

    async def close(self) -> None:
        """Close them all."""
        made, self._made = self._made, {}
        for engine in made.values():
            await engine.close()

    def _name(self, url: str) -> str:
        scheme = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}.get(url.partition("://")[0])
        if scheme is None or "::" in url or self._settings.engine == "fsspec":
            return "fsspec"
        if not self._carried(scheme):
            return "fsspec"
        if not fits_obstore(url):
            _tell_once("key", f"{shown(url)} and keys like it are read through fsspec: obstore can't name them")
            return "fsspec"
        return scheme

    def _carried(self, scheme: str) -> bool:
        """Whether obstore can be told all the options; settled once."""
        if scheme not in self._tellable:
            try:
                carry(scheme, self._settings.storage_options)
                self._tellable[scheme] = True
            except CannotCarryError as error:
                _tell_once(scheme, f"{scheme}:// is read through fsspec: obstore can't be told the option {error}")
                self._tellable[scheme] = False
        return self._tellable[scheme]

    def _make(self, name: str) -> Engine:
        if name == "fsspec":
            from streamio.storage.fsspec_engine import FsspecEngine

            return FsspecEngine(self._settings)
        from streamio.storage.obstore_engine import ObstoreEngine

        return ObstoreEngine(self._settings, name)


def fits_obstore(url: str) -> bool:
    """Whether obstore can name an object; it normalises paths: some keys are refused, or would be others."""
    bucket, key = split_url(url)
    if not bucket or ":" in bucket or bucket.endswith("--x-s3"):
        return False  # access points, directory buckets
    if re.search(r"[\x00-\x1f\x7f]", key):
        return False
    return not {"", ".", ".."} & set(key.split("/"))


def split_url(url: str) -> tuple[str, str]:
    """Bucket and key of `scheme://bucket/key`."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


def _tell_once(topic: str, message: str) -> None:
    if topic not in _told:
        _told.add(topic)
        logger.info(message)
