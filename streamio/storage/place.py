"""One URL on its file system: what lies exactly there, what lies below it or matches it, what is nearest.

It knows the quirks of listings; which of the files are data is `streamio.storage.selection`'s part.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamio.errors import DataNotFoundError, StreamioError
from streamio.storage.faults import classify, shown
from streamio.storage.pages import Entry, Info, Page, paged
from streamio.storage.retry import Retry
from streamio.storage.urls import NotAStoreError, bounded, filesystem, full_url, guarded, scheme_of

_FIRST_ANSWER = 15.0
"""Seconds for the first answer of a store: a wrong endpoint is told after that."""
_COUNT = 5.0
"""Seconds that counting neighbours may take for the sake of an error message."""


def is_glob(path: str, http: bool = False) -> bool:
    """Whether a path holds `*`, `?` or `[`; over HTTP a `?` begins the query."""
    return re.search(r"[*\[]" if http else r"[*?\[]", path) is not None


class Place:
    """One normalised URL on its file system.

    Attributes:
        url: The URL.
        path: Its path there, without a slash at the end.
        glob: Whether it is a glob.
        http: Whether it is read over HTTP.
        root: The path of the folder that the URL names before its first wildcard; without one, `path`.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None, retry: Retry | None = None) -> None:
        self.url = url
        self._retry = retry or Retry()
        self._scheme = scheme = scheme_of(url)
        self.http = scheme in ("http", "https")
        self._local = scheme == "file"
        self._bucketed = scheme in ("s3", "gs")
        bucket = url.partition("://")[2].partition("/")[0]
        if self._bucketed and not re.fullmatch(r"[\w.:-]+", bucket, re.ASCII):
            told = f"{bucket!r} can't be the name of a bucket" if bucket else "the name of the bucket is missing"
            raise ValueError(f"{shown(url)}: {told}; write it in full, {scheme}://bucket/...")
        self._fs, path = filesystem(url, storage_options, retry=self._retry)
        self.path = path if self.http or path == "/" else path.rstrip("/")
        self.glob = is_glob(self.path, self.http)
        before = re.split(r"[*\[]" if self.http else r"[*?\[]", self.path, maxsplit=1)[0]
        self.root = before.rpartition("/")[0] if self.glob else self.path

    def take_literally(self) -> None:
        """Take the path for the name of a folder, whatever wildcards it seems to hold."""
        self.glob, self.root = False, self.path

    def url_of(self, path: str) -> str:
        """The full URL of a path that this file system gave."""
        return full_url(self._fs, path, self.url)

    def look(self, path: str) -> Info | None:
        """What the store says of exactly this path; None where nothing is, or where it may not be told.

        Raises:
            EndpointError: The store does not answer.
        """

        def attempt() -> Info | None:
            try:
                if self._local:
                    return _local_info(path)
                return dict(bounded(self._fs, "info", path, seconds=_FIRST_ANSWER))
            except (OSError, KeyError) as error:
                # Answers to HEAD have no text, and 403 may mean that nothing is there: a listing tells more.
                told_later = ("missing", "denied", "credentials")
                if isinstance(error, OSError) and classify(error).kind not in told_later:
                    raise
                return None

        retry = replace(self._retry, deadline=min(self._retry.deadline, _FIRST_ANSWER))
        return guarded(attempt, url=self.url, what="looking it up", retry=retry)

    def listing(self) -> Iterator[Entry]:
        """Path and info of all that the glob matches, or of all that lies below the folder.

        Raises:
            DataNotFoundError: There is no such bucket.
            ValueError: A glob that can't be.
        """
        # A slash at the end of a glob asks for what lies below the folders that it matches.
        pattern = f"{self.path}/**" if self.url.endswith("/") else self.path
        if self.glob and re.search(r"[^/]\*\*|\*\*[^/]", pattern):
            raise ValueError(f"{shown(self.url)}: ** must stand alone between two slashes")
        if self._bucketed:
            return self._paged(pattern)

        def attempt() -> Mapping[str, Info]:
            try:
                if self._local:
                    return _local_tree(self.root, pattern if self.glob else None)
                if self.glob:
                    return dict(self._fs.glob(pattern, detail=True))
                return dict(self._fs.find(self.path, detail=True))
            except (OSError, KeyError) as error:
                if isinstance(error, StreamioError) or (
                    isinstance(error, OSError) and classify(error).kind != "missing"
                ):
                    raise
                return {}

        return iter(guarded(attempt, url=self.url, what="listing", retry=self._retry).items())

    def _paged(self, pattern: str) -> Iterator[Entry]:
        def call(request: Callable[[], Page]) -> Page:
            return guarded(lambda: self._told(request), url=self.url, what="listing", retry=self._retry)

        if not self.glob:
            yield from paged(self._scheme, self._fs, f"{self.path}/", flat=True, call=call)
            return
        below = pattern[len(self.root) + 1 :]
        stem = re.split(r"[*?\[]", self.path, maxsplit=1)[0]
        matches = _matcher(pattern)
        parts = None if "**" in below else pattern.count("/") + 1
        folder = ""
        for path, info in paged(self._scheme, self._fs, stem, flat="/" in below or parts is None, call=call):
            if matches(path):
                yield path, info
            elif parts is not None and path.count("/") >= parts:
                above = "/".join(path.split("/")[:parts])
                if above != folder and matches(above):
                    folder = above
                    yield above, {"type": "directory"}

    def _told(self, request: Callable[[], Page]) -> Page:
        """One page; with a clear error where there is no such bucket, or no such store."""
        try:
            return request()
        except OSError as error:
            if classify(error).kind != "missing":
                raise
            answer = getattr(error.__cause__, "response", None) or {}
            if str(answer.get("Error", {}).get("Code", "")).isdigit():  # S3 always names its code
                raise NotAStoreError(
                    "404 without an error code of S3: check that endpoint_url is that of an S3 server"
                ) from None
            raise DataNotFoundError(f"{shown(self.url)}: nothing is there. {self._no_bucket()}") from None

    def nearest(self) -> str:
        """In words: the nearest folder that exists, and how many entries it has if that is quickly told."""
        path = self.root
        while path.strip("/") and self.look(path) is None:
            path = path.rpartition("/")[0]
        if self._bucketed and not path:
            return self._no_bucket()
        if self.http or not (path.strip("/") or self._local):
            return "Check the URL."
        found = shown(self.url_of(path))
        try:
            entries = bounded(self._fs, "ls", path, detail=False, seconds=_COUNT)
        except Exception:  # noqa: BLE001 - it is only for the message
            return f"The nearest folder that exists is {found}."
        count = sum(entry.strip("/") != path.strip("/") for entry in entries)
        return f"The nearest folder that exists is {found}, with {count} {'entry' if count == 1 else 'entries'}."

    def _no_bucket(self) -> str:
        bucket = self.path.partition("/")[0]
        return f"There is no bucket {bucket!r}: check its name, and that endpoint_url is that of its store."


def _local_info(path: str) -> Info:
    """Like fsspec's, but of what a link leads to, with the time in whole nanoseconds."""
    told = Path(path).stat()
    kind = "directory" if stat.S_ISDIR(told.st_mode) else "file" if stat.S_ISREG(told.st_mode) else "other"
    return {"type": kind, "size": told.st_size, "mtime": told.st_mtime_ns}


def _local_tree(root: str, pattern: str | None) -> dict[str, Info]:
    """Matching files and folders below a local one; links are followed, each folder is seen once.

    fsspec's own walk leaves out what is linked, as caches of downloads are.
    """
    matches = _matcher(pattern) if pattern else bool
    depth = None if pattern is None or "**" in pattern else pattern[len(root) :].count("/")
    found: dict[str, Info] = {}
    seen: set[str] = set()
    for folder, folders, files in os.walk(root or "/", followlinks=True, onerror=_unless_gone):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()  # of several ways to one folder the first is taken, always the same
        if pattern:
            found.update({p: {"type": "directory"} for p in _joined(folder, folders) if matches(p)})
        if depth is not None and folder[len(root) :].count("/") + 1 >= depth:
            folders.clear()
        for path in filter(matches, _joined(folder, files)):
            try:
                info = _local_info(path)
            except FileNotFoundError:
                if not Path(path).is_symlink() or Path(path).name.startswith("."):
                    continue  # removed meanwhile, or an editor's lock
                raise DataNotFoundError(f"file://{path}: a link to a file that is not there") from None
            if info["type"] == "file":
                found[path] = info
    return found


def _matcher(pattern: str) -> Callable[[str], Any]:
    """Tells whether a path matches a glob, as fsspec has it: `**/` also stands for no folder at all."""
    from fsspec.utils import glob_translate

    return re.compile(glob_translate(pattern)).match


def _joined(folder: str, names: list[str]) -> list[str]:
    return [f"{folder.rstrip('/')}/{name}" for name in names]


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
