"""Lists the shards below a user's URLs: files, folders, globs and lists of these, on any store of fsspec's.

It looks at names and sizes only, never into a file. It uses no obstore, so that a process may fork after it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from streamio.errors import DataNotFoundError, EndpointError, FormatError
from streamio.storage.faults import shown
from streamio.storage.pages import Info
from streamio.storage.place import Place, is_glob
from streamio.storage.retry import Retry
from streamio.storage.selection import Selection
from streamio.storage.shards import Shard, ShardList
from streamio.storage.urls import name_of, normalise

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

URLs: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

_AT_ONCE = 16
"""URLs listed at the same time."""
_CHUNK = 4096
"""Shards held as Python objects."""


def discover(
    urls: URLs,
    *,
    storage_options: Mapping[str, Any] | None = None,
    accepts: Callable[[str], bool] | None = None,
    known: str = "",
    retry: Retry | None = None,
) -> ShardList:
    """List every shard below one or many URLs: files, folders, globs with `**`.

    In folders and globs, hidden and marker files, placeholders of folders, and files of unknown format are
    left out; so are, with a warning, names with `::` in them, as fsspec can't name these. A file named in full is
    always taken; an object or folder whose very name is also a glob is taken instead of what the glob matches.

    Args:
        urls: A URL, a path, or a sequence of them. A folder stands for all that lies below it.
        storage_options: Options for fsspec; by scheme where there are several (see `docs/urls.md`).
        accepts: Tells of a file's name or URL whether its format is known; by default every file is taken.
        known: The suffixes that `accepts` knows, for messages.
        retry: When failed calls are tried again, `Retry()` by default. For a URL's first answer it is for 15 s at most.

    Returns:
        The shards sorted by URL, each once, however many of `urls` lead to it.

    Raises:
        TypeError: `urls` is no string, path or sequence of these; an option that no file system knows.
        ValueError: No URL at all, an empty one, or a glob that can't be.
        DataNotFoundError: Nothing lies below one of the URLs.
        FormatError: Only files of unknown format do.
        AccessError: No permission.
        CredentialsError: No credentials, or unknown ones.
        EndpointError: The store does not answer, or is none; told within about 20 s.
        SchemeError: An unknown scheme, or one whose package is missing.
    """
    import pyarrow as pa

    wanted = _wanted(urls)

    def found(url: str) -> pa.Table:
        return _table(_below(url, storage_options, accepts, known, retry))

    if len(wanted) == 1:
        shards = _sorted(found(wanted[0]))
    else:
        with ThreadPoolExecutor(min(_AT_ONCE, len(wanted)), thread_name_prefix="streamio-list") as pool:
            shards = _sorted(pa.concat_tables(pool.map(found, wanted)))
    pa.default_memory_pool().release_unused()  # what sorting took, several times the list
    return shards


def _wanted(urls: URLs) -> list[str]:
    if isinstance(urls, (str, os.PathLike)):
        return [normalise(urls)]
    if isinstance(urls, (bytes, Mapping)) or not isinstance(urls, Iterable):
        raise TypeError(f"URLs must be a string, a path or a sequence of these, not {type(urls).__name__}")
    wanted = list(dict.fromkeys(normalise(url) for url in urls))
    if not wanted:
        raise ValueError("the list of URLs is empty: give at least one file, folder or glob")
    return wanted


def _table(shards: Iterator[Shard]) -> pa.Table:
    """The shards as Arrow columns, made in chunks: as Python objects they would take many times the memory."""
    import pyarrow as pa

    schema = pa.schema([("url", pa.large_string()), ("size", pa.int64()), ("version", pa.large_string())])
    batches = []
    while chunk := list(islice(shards, _CHUNK)):
        columns = [[shard.url for shard in chunk], [shard.size for shard in chunk], [shard.version for shard in chunk]]
        batches.append(pa.record_batch(columns, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def _sorted(table: pa.Table) -> ShardList:
    """The list in the order of URLs, each once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.sort_by("url").combine_chunks()
    urls = table["url"]
    first = pa.array([True] * min(1, len(table)), pa.bool_())
    differs = pc.not_equal(urls[1:], urls[:-1])
    return ShardList(table.filter(pa.chunked_array([first, *differs.chunks])))


def _below(
    url: str,
    options: Mapping[str, Any] | None,
    accepts: Callable[[str], bool] | None,
    known: str,
    retry: Retry | None,
) -> Iterator[Shard]:
    """The shards below one normalised URL."""
    first, chained, rest = url.partition("::")
    if chained and "://" in first and is_glob(rest):  # several archives: each for itself
        for archive in discover(rest, storage_options=options, retry=retry):
            yield from _below(f"{first}::{archive.url}", options, accepts, known, retry)
        return
    place = Place(url, options, retry)
    named = None
    exact = place.look(place.path)  # also shows early whether the store answers at all
    if exact is not None and exact.get("type") == "directory":
        place.take_literally()
    elif exact is not None:
        named = _shard(place, place.path, exact)
        # What else it might be is the placeholder of a folder of that name.
        data = accepts(name_of(named.url)) if accepts else named.size > 0
        if data and not url.endswith("/"):
            yield named
            return
    selection = Selection(place, accepts)
    unnamed: list[str] = []
    for path, info in place.listing():
        if not selection.takes(path, info):
            continue
        if "::" in path:
            unnamed.append(path)
        else:
            yield _shard(place, path, info)
    selection.tell()
    if unnamed:
        count = f"{len(unnamed)} file{'s' if len(unnamed) > 1 else ''}"
        told = f"{shown(url)}: {count} with :: in the name, {shown(place.url_of(unnamed[0]))!r} for one"
        why = "fsspec takes :: for a chain of URLs and can't name it. Rename what has it."
        if len(unnamed) == selection.taken:
            raise DataNotFoundError(f"{told}, and there are no others: {why}")
        logger.warning("%s, left out: %s", told, why)
    if selection.taken:
        return
    if named is None:
        raise _nothing(place, selection, known)
    if accepts and not accepts(name_of(named.url)):
        raise FormatError(_unknown([named.url], known))
    yield named


def _shard(place: Place, path: str, info: Info) -> Shard:
    url = place.url_of(path)
    if info.get("size") is None:  # a listing over HTTP is but a page of links
        info = {**info, **(place.look(path) or {})}
    if info.get("size") is None:
        raise EndpointError(f"{shown(url)}: the server does not tell its length (no Content-Length).")
    return Shard(url, int(info["size"]), _version(info))


def _version(info: Info) -> str | None:
    """What changes when the object does, as far as a listing tells it.

    For gs:// the generation: the JSON API, which lists, gives another ETag than the XML API, by which obstore
    reads, so that an If-Match with it would fail on each shard.
    """
    names = ("generation", "ETag", "etag", "e_tag", "checksum", "md5", "content_md5", "sha", "CRC")
    times = ("mtime", "last_modified", "LastModified", "Last-Modified", "modified", "created")
    value = next((info[name] for name in (*names, *times) if info.get(name)), None)
    if value is None:
        return None
    if isinstance(value, datetime):  # a number, as other calls of the same file system have it
        value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    return str(value).removeprefix("W/").strip('"')


def _nothing(place: Place, selection: Selection, known: str) -> Exception:
    """The error for a URL below which there is no shard."""
    url = shown(place.url)
    if selection.unknown:
        return FormatError(_unknown([place.url_of(path) for path in selection.unknown], known))
    if selection.hidden:
        some = ", ".join(shown(place.url_of(path)) for path in selection.hidden)
        return DataNotFoundError(
            f"{url}: only hidden or marker files are there ({some}). To read them, name them in full."
        )
    if selection.folders:
        return DataNotFoundError(
            f"{url}: only folders match, {shown(place.url_of(selection.folders[0]))} for one. "
            "Add a slash at the end to take all that lies below them."
        )
    return DataNotFoundError(f"{url}: nothing is there. {place.nearest()}")


def _unknown(urls: Sequence[str], known: str) -> str:
    some = ", ".join(shown(url) for url in urls)
    what = f"of unknown format: {some}."
    return f"{what} Known are {known}." if known else f"{what} Convert it, or register a format for its suffix."
