"""Small objects by URL, read and written whole: what checkpoints are made of.

Shards are not read here (`reader`), and not listed (`discovery`).
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from streamio.storage.faults import classify
from streamio.storage.retry import Retry
from streamio.storage.urls import filesystem, guarded, normalise, scheme_of

T = TypeVar("T")


def put(url: str, data: bytes, storage_options: Mapping[str, Any] | None = None, *, retry: Retry | None = None) -> None:
    """Write a small object whole, replacing what was there: one PUT, or a temporary local file and a rename.

    Raises:
        StreamioError: It can't be written.
    """
    url = normalise(url)
    fs, path = filesystem(url, storage_options)

    def write() -> None:
        if scheme_of(url) == "file":
            _replace(Path(path), data)
            return
        try:
            fs.pipe_file(path, data)
        except FileNotFoundError:
            if scheme_of(url) in ("s3", "gs"):  # a missing bucket is a typing error: never make it
                raise
            fs.makedirs(fs._parent(path), exist_ok=True)  # noqa: SLF001
            fs.pipe_file(path, data)

    guarded(write, url=url, what="writing", retry=retry)


def get(url: str, storage_options: Mapping[str, Any] | None = None, *, retry: Retry | None = None) -> bytes | None:
    """Read a small object whole.

    Returns:
        Its bytes; None where there is no such object (or folder).

    Raises:
        DataNotFoundError: There is no such bucket (gs:// tells that of listings only).
        StreamioError: It can't be read.
    """
    url = normalise(url)
    fs, path = filesystem(url, storage_options)
    return _unless_missing(lambda: bytes(fs.cat_file(path)), url=url, what="reading", retry=retry)


def exists(url: str, storage_options: Mapping[str, Any] | None = None, *, retry: Retry | None = None) -> bool:
    """Whether there is an object or folder; errors as for `get`."""
    url = normalise(url)
    fs, path = filesystem(url, storage_options)
    return _unless_missing(lambda: fs.info(path), url=url, what="looking it up", retry=retry) is not None


def ls(url: str, storage_options: Mapping[str, Any] | None = None, *, retry: Retry | None = None) -> list[str]:
    """Names of what lies directly in a folder, objects and folders alike (these without a slash), sorted.

    Empty where there is no such folder. Temporary files of `put` are left out. Errors as for `get`.
    """
    url = normalise(url).rstrip("/")
    fs, path = filesystem(url, storage_options)
    found = _unless_missing(lambda: fs.ls(path, detail=False), url=url, what="listing", retry=retry) or []
    names = {name.rstrip("/").rpartition("/")[2] for name in found if name.strip("/") != path.strip("/")}
    return sorted(name for name in names if name and not re.fullmatch(r"\..*\.tmp", name))


def remove(url: str, storage_options: Mapping[str, Any] | None = None, *, retry: Retry | None = None) -> None:
    """Remove one object; it is no error where there is none. Errors as for `get`."""
    url = normalise(url)
    fs, path = filesystem(url, storage_options)
    _unless_missing(lambda: fs.rm_file(path), url=url, what="removing", retry=retry)


def _unless_missing(fn: Callable[[], T], *, url: str, what: str, retry: Retry | None) -> T | None:
    """What `fn` gives; None where it finds nothing, unless the bucket itself is missing."""

    def attempt() -> T | None:
        try:
            return fn()
        except (OSError, KeyError) as error:
            absent = isinstance(error, (KeyError, IsADirectoryError)) or classify(error).kind == "missing"
            if not absent or re.search(r"bucket does not exist|^b/[^/]+/o$", str(error)):
                raise
            return None

    return guarded(attempt, url=url, what=what, retry=retry)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
