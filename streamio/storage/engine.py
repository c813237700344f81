"""What reads one range of one shard in one attempt, and which engine does so for which shard.

obstore reads s3:// and gs://; fsspec reads everything else, and what obstore can't be told. No retries here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from streamio.errors import SchemeError
from streamio.storage.carry import CannotCarryError, carry
from streamio.storage.faults import shown
from streamio.storage.parts import Buffer
from streamio.storage.settings import ReadSettings
from streamio.storage.shards import Shard
from streamio.storage.urls import normalise

__all__ = ["Buffer", "Engine", "Engines", "check_engine", "fits_obstore", "split_url"]

logger = logging.getLogger(__name__)
_told: set[str] = set()


class Engine(Protocol):
    """A read client. All calls run on the process's io loop."""

    def get(self, shard: Shard, start: int, stop: int, *, whole: bool) -> AsyncGenerator[Buffer, None]:
        """One attempt to read [start, stop) of a shard, in chunks; never more, perhaps less.

        Args:
            shard: Of what.
            start: First byte.
            stop: End.
            whole: Whether the bytes may come in one piece, which costs least but is lost if the connection breaks.

        Yields:
            The bytes in order. An empty chunk tells that some came which were lost.

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
        self._options: dict[str, str | None] = {}

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

    def refusal(self, url: str) -> str | None:
        """Why obstore can't read what lies at a URL or below it; None where it can."""
        scheme = _scheme(url)
        if scheme is None:
            return f"obstore reads s3:// and gs:// here, and {shown(url)} is neither"
        option = self._untellable(scheme)
        return option and f"obstore can't be told the option {option}"

    def _name(self, url: str) -> str:
        """What reads a shard: "fsspec", or the scheme where it is obstore."""
        if self._settings.engine == "fsspec":
            return "fsspec"
        scheme, why = _scheme(url), self.refusal(url)
        topic, told = scheme, f"{scheme}:// is read through fsspec: {why}"
        if why is None and not fits_obstore(url):
            why = f"obstore can't name {shown(url)}"
            topic, told = "key", f"{shown(url)} and keys like it are read through fsspec: obstore can't name them"
        if why is None:
            assert scheme is not None
            return scheme
        if self._settings.engine == "obstore":
            raise _refused(why)
        if topic is not None:  # all other schemes are fsspec's anyway
            _tell_once(topic, told)
        return "fsspec"

    def _untellable(self, scheme: str) -> str | None:
        """The option that obstore can't be told; settled once."""
        if scheme not in self._options:
            try:
                carry(scheme, self._settings.storage_options)
                self._options[scheme] = None
            except CannotCarryError as error:
                self._options[scheme] = str(error)
        return self._options[scheme]

    def _make(self, name: str) -> Engine:
        if name == "fsspec":
            from streamio.storage.fsspec_engine import FsspecEngine

            return FsspecEngine(self._settings)
        from streamio.storage.obstore_engine import ObstoreEngine

        return ObstoreEngine(self._settings, name)


def check_engine(settings: ReadSettings, urls: Iterable[str]) -> None:
    """Refuse `engine="obstore"` where obstore can't read what these URLs lead to. No I/O happens here.

    Args:
        settings: How to read.
        urls: URLs, globs or folders, as the user wrote them.

    Raises:
        SchemeError: A scheme that obstore does not read here, or an option that it can't be told.
    """
    if settings.engine != "obstore":
        return
    engines = Engines(settings)
    for url in urls:
        why = engines.refusal(normalise(url))
        if why is not None:
            raise _refused(why)


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


def _scheme(url: str) -> str | None:
    """The scheme under which obstore knows a URL; None where it does not."""
    return None if "::" in url else {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}.get(url.partition("://")[0])


def _refused(why: str) -> SchemeError:
    return SchemeError(f'engine="obstore": {why}. Change that, or let engine="auto" read it through fsspec.')


def _tell_once(topic: str, message: str) -> None:
    if topic not in _told:
        _told.add(topic)
        logger.info(message)
