"""Reads s3:// and gs:// through obstore: one conditional range request an attempt, on the process's io loop.

It makes a store for each bucket and looks credentials up as s3fs and gcsfs do; it does not retry.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from streamio.errors import ReadError, StreamioError
from streamio.storage.carry import GsOptions, S3Options, carry, client_options
from streamio.storage.engine import split_url
from streamio.storage.faults import ChangedError, ShortAnswerError, scrub, shown
from streamio.storage.guard import mark_obstore_used, refuse_after_fork
from streamio.storage.loop import in_thread, linger
from streamio.storage.parts import Buffer
from streamio.storage.settings import ReadSettings
from streamio.storage.shards import Shard

CHUNK = 64 << 10
"""Bytes that obstore gathers at a retry before it hands them over: what is lost when that breaks too."""

NO_RETRIES = {"max_retries": 0}  # ours is the only retry policy
_KEYWORDS = {"google_default", "cache", "cloud", "token", "browser"}


class ObstoreEngine:
    """An `Engine` on obstore.

    Args:
        settings: How to read; its storage options are s3fs's or gcsfs's.
        scheme: "s3" or "gs".
    """

    def __init__(self, settings: ReadSettings, scheme: str) -> None:
        self._settings = settings
        self._scheme = scheme
        self._stores: dict[str, Any] = {}
        self._making = asyncio.Lock()
        self._shared: Callable[[str], Any] | None = None

    async def get(self, shard: Shard, start: int, stop: int, *, whole: bool) -> AsyncGenerator[Buffer, None]:
        """One conditional range request; see `Engine`."""
        refuse_after_fork(shard.url)
        bucket, key = split_url(shard.url)
        store = await self._store(bucket)
        options: dict[str, Any] = {"range": (start, stop), **self._condition(shard)}
        mark_obstore_used()
        try:
            async with aclosing(self._answer(store, key, shard, options, whole=whole)) as answer:
                async for chunk in answer:
                    yield chunk
        finally:
            linger()

    async def _answer(
        self, store: Any, key: str, shard: Shard, options: dict[str, Any], *, whole: bool
    ) -> AsyncGenerator[Buffer, None]:
        import obstore

        try:
            result = await obstore.get_async(store, key, options=options)  # type: ignore[arg-type]
        except ValueError as error:  # what it can't make a request of
            if isinstance(error, StreamioError):
                raise
            raise ReadError(f"{shown(shard.url)}: obstore can't read it: {scrub(str(error))}") from None
        self._check(shard, result.meta, result.range, options["range"])
        if not whole:
            async for chunk in result.stream(min_chunk_size=CHUNK):
                yield chunk
            return
        try:
            body = await result.bytes_async()  # gathered by Rust, while Python does other work
        except Exception:
            yield b""  # how much of it had come is not known
            raise
        yield memoryview(body)

    async def refresh(self) -> None:
        """Forget stores and credentials."""
        async with self._making:
            self._stores.clear()
            self._shared = None

    async def close(self) -> None:
        """Forget stores; their connections close with them."""
        self._stores.clear()

    def _condition(self, shard: Shard) -> dict[str, str]:
        """What makes the store refuse another version of the object."""
        if shard.version is None:
            return {}
        if self._scheme == "gs" and shard.version.isdigit():
            return {"version": shard.version}  # a generation: this one is read or none
        return {"if_match": f'"{shard.version}"'}

    def _check(self, shard: Shard, meta: Any, got: tuple[int, int], asked: tuple[int, int]) -> None:
        """Compare what the answer's head says with what was asked; some stores ignore conditions."""
        if meta["size"] != shard.size:
            raise ChangedError(f"it has {meta['size']} bytes where {shard.size} were listed")
        etag = (meta["e_tag"] or "").removeprefix("W/").strip('"')
        generation = self._scheme == "gs"
        version = meta["version"] if generation and (shard.version or "").isdigit() else etag
        if version and shard.version is not None and version != shard.version:
            raise ChangedError(f"its version is {version} where {shard.version} was listed")
        if tuple(got) != asked:
            raise ShortAnswerError(f"bytes {got[0]}-{got[1] - 1} came where {asked[0]}-{asked[1] - 1} were asked for")

    async def _store(self, bucket: str) -> Any:
        store = self._stores.get(bucket)
        if store is None:
            async with self._making:
                if bucket not in self._stores:
                    if self._shared is None:
                        self._shared = await (self._s3() if self._scheme == "s3" else self._gs())
                    self._stores[bucket] = self._shared(bucket)
                store = self._stores[bucket]
        return store

    async def _s3(self) -> Callable[[str], Any]:
        """A maker of S3 stores, once endpoint, region and credentials are known."""
        from obstore.store import S3Store

        options = carry("s3", self._settings.storage_options)
        assert isinstance(options, S3Options)
        place, provider = await in_thread(lambda: s3_settled(options))
        config = {
            **place,
            "skip_signature": options.anon,
            "virtual_hosted_style_request": False,
            **({"request_payer": True} if options.requester_pays else {}),
        }
        client = self._client(place["endpoint"], options.verify)
        return lambda bucket: S3Store(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options=client,
            retry_config=NO_RETRIES,  # type: ignore[arg-type]
            credential_provider=provider,
        )

    async def _gs(self) -> Callable[[str], Any]:
        """A maker of GCS stores."""
        from obstore.store import GCSStore

        options = carry("gs", self._settings.storage_options)
        assert isinstance(options, GsOptions)
        provider = await in_thread(lambda: gs_provider(options))
        config: dict[str, Any] = {"base_url": options.endpoint} if options.endpoint else {}
        if provider is None:
            config |= {"skip_signature": True, "bearer_token": "none"}
        client = self._client(options.endpoint, True)
        return lambda bucket: GCSStore(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options=client,
            retry_config=NO_RETRIES,  # type: ignore[arg-type]
            credential_provider=provider,
        )

    def _client(self, endpoint: str | None, verify: bool | str) -> Any:
        longest = max(self._settings.retry.deadline, 2 * self._settings.stall_timeout)
        return client_options(
            endpoint=endpoint, verify=verify, stall_timeout=self._settings.stall_timeout, longest=longest
        )


def s3_settled(options: S3Options) -> tuple[dict[str, str], Any]:
    """Endpoint, region and a provider of credentials: from the options, and where they are silent by botocore.

    Raises:
        NoCredentialsError: botocore's, where there are none (and other botocore errors).
    """
    endpoint, region = options.endpoint, options.region
    given = bool(options.key) or options.anon
    provider: Any = None
    if not given or endpoint is None or (region is None and shared_config(options.profile)):
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import NoCredentialsError

        session = botocore.session.Session(profile=options.profile)
        region = region or session.get_config_variable("region")
        if endpoint is None:
            unsigned = Config(signature_version=UNSIGNED)
            client = session.create_client("s3", region_name=region, config=unsigned)
            endpoint, region = client.meta.endpoint_url, region or client.meta.region_name
        if not given:
            credentials = session.get_credentials()
            if credentials is None:
                raise NoCredentialsError
            provider = _botocore_provider(credentials)
    if options.key:
        provider = _fixed(options.key, options.secret, options.token)
    place = {"endpoint": endpoint, "region": region or "us-east-1"}
    if "AWS_ENDPOINT_URL_S3" in os.environ:  # obstore would prefer it to what the options say
        place["aws_endpoint_url_s3"] = endpoint
    return place, provider


def shared_config(profile: str | None) -> bool:
    """Whether there is anything in a shared config file that botocore would have to look at."""
    files = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
    paths = [Path(os.environ.get(name) or usual).expanduser() for name, usual in files.items()]
    named = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    return bool(named) or any(path.is_file() for path in paths)


def gs_provider(options: GsOptions) -> Any:
    """A provider of bearer tokens as gcsfs would find them; None for anonymous reads."""
    token = options.token
    if token in ("anon", None) and (token or (options.endpoint or "").startswith("http://")):
        return None  # an emulator asks for no token
    if isinstance(token, str) and token not in _KEYWORDS and not Path(token).exists():
        return _always({"token": token, "expires_at": None})
    import gcsfs

    found = gcsfs.GCSFileSystem(
        token=token, project=options.project or "", asynchronous=True, skip_instance_cache=True
    ).credentials
    if found.credentials is None:
        return None

    async def provide() -> Any:
        await in_thread(found.maybe_refresh)
        expiry = found.credentials.expiry
        return {
            "token": found.credentials.token,
            "expires_at": expiry.replace(tzinfo=timezone.utc) if expiry else None,
        }

    return provide


def _fixed(key: str, secret: str | None, token: str | None) -> Callable[[], Awaitable[Any]]:
    return _always({"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None})


def _always(credential: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
    """A provider that obstore asks once; unlike its own options it can't be mixed with the environment's."""

    async def provide() -> Any:
        return credential

    return provide


def _botocore_provider(credentials: Any) -> Callable[[], Awaitable[Any]]:
    """Credentials that botocore keeps fresh; obstore asks again every five minutes."""
    if not hasattr(credentials, "refresh_needed"):
        frozen = credentials.get_frozen_credentials()
        return _fixed(frozen.access_key, frozen.secret_key, frozen.token)

    async def provide() -> Any:
        frozen = await in_thread(credentials.get_frozen_credentials)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + timedelta(minutes=10),
        }

    return provide
