"""Reads through fsspec: all schemes but s3:// and gs://, and these where obstore can't.

One attempt a call; what fsspec's filesystems retry by themselves is switched off for s3fs and gcsfs.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator
from typing import Any

from streamio.errors import ReadError
from streamio.storage.engine import split_url
from streamio.storage.faults import ChangedError, ShortAnswerError, shown
from streamio.storage.loop import in_thread
from streamio.storage.settings import MIB, ReadSettings
from streamio.storage.shards import Shard
from streamio.storage.urls import filesystem as filesystem_of
from streamio.storage.urls import options_for, scheme_of

CHAINED = 64  # filesystems of chained URLs that are kept
SLOWEST = 64 << 10  # bytes a second below which an answer that comes in one piece counts as stalled


class FsspecEngine:
    """An `Engine` on fsspec.

    Args:
        settings: How to read; its storage options go to the filesystem.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._filesystems: dict[str, tuple[Any, str]] = {}
        self._left: list[tuple[Any, str]] = []
        self._locks: weakref.WeakKeyDictionary[Any, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._making = asyncio.Lock()

    async def get(self, shard: Shard, start: int, stop: int, *, whole: bool) -> AsyncGenerator[bytes, None]:
        """One attempt; see `Engine`. s3fs gives its bytes as they come, all others in one piece."""
        scheme = "" if "::" in shard.url else shard.url.partition("://")[0]
        if scheme in ("s3", "s3a"):
            async for chunk in self._s3(shard, start, stop):
                yield chunk
            return
        data = await asyncio.wait_for(
            self._gs(shard, start, stop) if scheme in ("gs", "gcs") else self._any(shard, start, stop),
            self._settings.stall_timeout + (stop - start) / SLOWEST,
        )
        if len(data) > stop - start:
            raise ReadError(
                f"{shown(shard.url)}: {len(data)} bytes came where {stop - start} were asked for: the server "
                "does not answer range requests. Put simplecache:: before the URL to read a local copy."
            )
        yield data

    async def refresh(self) -> None:
        """Use other filesystems from now on; reads that still use the old ones go on."""
        self._left.extend(self._filesystems.values())
        self._filesystems.clear()

    async def close(self) -> None:
        """Close the sessions of those filesystems that live on our loop."""
        await self.refresh()
        made, self._left = self._left, []
        for filesystem, _ in made:
            session = getattr(filesystem, "_s3creator", None) or getattr(filesystem, "_session", None)
            if getattr(filesystem, "asynchronous", False) and session is not None:
                with contextlib.suppress(Exception):
                    await session.__aexit__(None, None, None)

    async def _s3(self, shard: Shard, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """A conditional range request of s3fs's client, read as it comes."""
        bucket, key = split_url(shard.url)
        options = self._options("s3")
        once = {
            "retries": {"total_max_attempts": 1},
            "max_pool_connections": self._settings.concurrency,
            **(options.get("config_kwargs") or {}),
        }
        filesystem = await self._own("s3", {**options, "config_kwargs": once})
        checked = shard.version is not None and not options.get("local_expiry_check")
        terms = dict(getattr(filesystem, "req_kw", {}))  # that the requester pays
        if checked:
            terms["IfMatch"] = f'"{shard.version}"'
        stall = self._settings.stall_timeout
        asked = f"bytes {start}-{stop - 1}/"
        answer = await asyncio.wait_for(
            filesystem._call_s3(  # noqa: SLF001 - no public call is conditional
                "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **terms
            ),
            stall,
        )
        body = answer["Body"]
        try:
            came = str(answer.get("ContentRange") or "the whole object")
            size = came.rpartition("/")[2]
            if size.isdigit() and int(size) != shard.size:
                raise ChangedError(f"it has {size} bytes where {shard.size} were listed")
            if not came.startswith(asked):
                raise ShortAnswerError(f"{came} came where {asked[:-1]} were asked for")
            while chunk := await asyncio.wait_for(body.read(MIB), stall):
                yield chunk
        finally:
            body.close()

    async def _gs(self, shard: Shard, start: int, stop: int) -> bytes:
        """A range request of gcsfs, for the listed generation where it is known."""
        filesystem = await self._own("gs", self._options("gs"))
        once = getattr(getattr(type(filesystem), "_request", None), "__wrapped__", None)
        if once is not None:  # without gcsfs's own six retries
            filesystem._request = once.__get__(filesystem)  # noqa: SLF001 - they have no option
        version = shard.version if shard.version and shard.version.isdigit() else None
        path = "/".join(split_url(shard.url))
        reading = filesystem._cat_file  # noqa: SLF001 - fsspec's interface for use on a loop
        return bytes(await reading(path, start=start, end=stop, generation=version))

    async def _any(self, shard: Shard, start: int, stop: int) -> bytes:
        """A range of any other filesystem: by its own loop if it has one, else in a thread."""
        filesystem, path = await self._filesystem(shard.url)
        if getattr(filesystem, "async_impl", False) and hasattr(filesystem, "_cat_file"):
            reading = filesystem._cat_file(path, start=start, end=stop)  # noqa: SLF001 - as above
            data = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, filesystem.loop))
        else:
            async with self._turn(filesystem):
                data = await in_thread(lambda: filesystem.cat_file(path, start=start, end=stop))
        if len(data) < stop - start:
            await self._check_size(shard, filesystem, path)
        return bytes(data)

    async def _check_size(self, shard: Shard, filesystem: Any, path: str) -> None:
        """Tell a shard that has become shorter from an answer that was cut off."""
        filesystem.invalidate_cache()
        size = (await in_thread(lambda: filesystem.info(path))).get("size")
        if size is not None and size != shard.size:
            raise ChangedError(f"it has {size} bytes where {shard.size} were listed")

    async def _filesystem(self, url: str) -> tuple[Any, str]:
        """The filesystem of a URL, made once for a scheme, and once for each of the latest chained URLs."""
        chained = "::" in url
        name = url if chained else scheme_of(url)
        async with self._making:
            made = self._filesystems.get(name)
            if made is None:
                made = await in_thread(lambda: filesystem_of(url, self._settings.storage_options))
                self._filesystems[name] = made
                if chained and len(self._filesystems) > CHAINED:
                    self._filesystems.pop(next(name for name in self._filesystems if "::" in name))
        filesystem, path = made
        return filesystem, path if chained else str(filesystem._strip_protocol(url))  # noqa: SLF001 - fsspec's way

    async def _own(self, scheme: str, options: dict[str, Any]) -> Any:
        """A filesystem of s3fs or gcsfs on our loop, which nobody else uses."""
        async with self._making:
            if scheme not in self._filesystems:
                ours = {"asynchronous": True, "loop": asyncio.get_running_loop(), "skip_instance_cache": True}
                self._filesystems[scheme] = await in_thread(
                    lambda: filesystem_of(f"{scheme}://", {scheme: {**options, **ours}})
                )
            return self._filesystems[scheme][0]

    def _options(self, scheme: str) -> dict[str, Any]:
        return options_for(f"{scheme}://", self._settings.storage_options)[scheme]

    def _turn(self, filesystem: Any) -> Any:
        """Few blocking filesystems may be used from several threads: the others read one range at a time."""
        protocol = filesystem.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        if names & {"file", "local", "memory"}:
            return contextlib.nullcontext()
        return self._locks.setdefault(filesystem, asyncio.Lock())
