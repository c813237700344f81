"""Reads a range until it is whole: engines make the attempts, the retry policy says how many.

It may come in one piece, until that breaks; from then on it comes in chunks, so that a read that breaks again goes on
at the byte it has reached. Everything here runs on the io loop.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field

from tenacity import AsyncRetrying, RetryCallState

from streamio.errors import StreamioError
from streamio.storage.budget import Counters
from streamio.storage.engine import Engines
from streamio.storage.faults import Fault, ShortAnswerError, classify, read_error
from streamio.storage.parts import Buffer
from streamio.storage.retry import made_progress
from streamio.storage.settings import ReadSettings
from streamio.storage.shards import Shard


class Fetcher:
    """Reads ranges for one reader.

    Args:
        settings: How to read.
        counters: Where to count.
    """

    def __init__(self, settings: ReadSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._engines = Engines(settings)
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._answered = False
        self._expired = False

    async def fetch(self, shard: Shard, start: int, stop: int) -> list[Buffer]:
        """Exactly the bytes [start, stop), as chunks in order.

        Raises:
            ShardChangedError: The shard was overwritten or removed since it was listed.
            AccessError: 403.
            CredentialsError: 401, or no credentials.
            ReadError: No progress until the deadline, or a fault that retrying can't mend.
        """
        wanted = _Wanted(shard, start, stop)
        policy = self._settings.retry.policy(url=shard.url, what=wanted.__str__, judge=self._judge, on_retry=self._note)
        try:
            async for attempt in AsyncRetrying(**policy):
                with attempt:
                    async with self._gate:
                        await self._attempt(wanted, attempt.retry_state)
        except StreamioError:
            raise
        except Exception as error:
            fault = self._judge(error)
            if fault.kind == "foreign":
                raise
            # Not chained: a client's own text may hold parts of signed requests.
            raise read_error(
                fault,
                url=shard.url,
                what=str(wanted),
                attempts=wanted.attempts,
                seconds=time.monotonic() - wanted.moved,
            ) from None
        finally:
            if wanted.at < stop:
                wanted.chunks.clear()  # tasks and retry states stay alive until the garbage collector comes by
        self._answered = True
        return wanted.chunks

    async def close(self) -> None:
        """Let go of connections."""
        await self._engines.close()

    async def _attempt(self, wanted: _Wanted, state: RetryCallState) -> None:
        """One request for what is still missing."""
        if self._expired:
            self._expired = False
            await self._engines.refresh()
        engine = self._engines.of(wanted.shard)
        self._counters.add(requests=1, retries=int(wanted.attempts > 0))
        wanted.attempts += 1
        async with aclosing(engine.get(wanted.shard, wanted.at, wanted.stop, whole=not wanted.broken)) as answer:
            async for chunk in answer:
                wanted.take(chunk)
                made_progress(state)
                self._counters.add(bytes_read=len(chunk))
        wanted.check_whole()

    def _judge(self, error: BaseException) -> Fault:
        fault = classify(error)
        if fault.kind == "credentials" and self._answered:  # they were good before: they have run out
            return Fault("expired", fault.text)
        return fault

    def _note(self, fault: Fault) -> None:
        self._expired |= fault.kind == "expired"


@dataclass
class _Wanted:
    """A range on its way: what has come of it, and what is missing."""

    shard: Shard
    at: int
    stop: int
    chunks: list[Buffer] = field(default_factory=list)
    attempts: int = 0
    broken: bool = False
    moved: float = field(default_factory=time.monotonic)

    def take(self, chunk: Buffer) -> None:
        if self.at + len(chunk) > self.stop:
            raise ShortAnswerError(f"more than {self} came")
        if len(chunk):
            self.chunks.append(chunk)
        else:
            self.broken = True
        self.at += len(chunk)
        self.moved = time.monotonic()

    def check_whole(self) -> None:
        if self.at < self.stop:
            raise ShortAnswerError(f"the answer ended {self.stop - self.at} bytes early, at byte {self.at}")

    def __str__(self) -> str:
        return f"bytes {self.at}-{self.stop - 1}"
