"""Where the index of a data set lies: beside its data, unless it is told otherwise. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from streamio.storage.faults import shown
from streamio.storage.place import is_glob
from streamio.storage.urls import normalise, scheme_of

if TYPE_CHECKING:
    import os

#: The folder that holds it; hidden, so that no listing of data takes it for a shard.
FOLDER = "_streamio"
NAME = "index.parquet"


def data_folder(urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], shards: Iterable[str]) -> str | None:
    """The common folder of a user's URLs, without a slash at its end.

    Args:
        urls: What the user named: files, folders, globs.
        shards: URLs of the shards that lie there, which tell files from folders.

    Returns:
        The folder; None where there is none, as they lie in several stores, in archives, or behind queries.
    """
    named = [urls] if isinstance(urls, str) or not isinstance(urls, Sequence) else urls
    wanted = [normalise(url) for url in named]
    if any("::" in url or (scheme_of(url) in ("http", "https") and "?" in url) for url in wanted):
        return None
    files = set(shards).intersection(wanted)
    folders = [_folder(url, is_file=url in files).split("/") for url in wanted]
    common = folders[0]
    for folder in folders[1:]:
        same = [one == other for one, other in zip(common, folder, strict=False)]
        common = common[: (*same, False).index(False)]
    # A scheme, nothing, and a bucket or host: of local files the root will do.
    enough = len(common) > 3 or (len(common) == 3 and (common[2] or common[0] == "file:"))
    return "/".join(common) if enough else None


def default_url(folder: str) -> str:
    """Where the index of the data in a folder lies by default."""
    return f"{folder}/{FOLDER}/{NAME}"


def folder_of(index: str) -> str:
    """The folder that relative URLs in an index are relative to: the one that it describes, or else lies in."""
    return index.rpartition("/")[0].removesuffix(f"/{FOLDER}")


def check_out(index: str, folder: str | None) -> None:
    """Raise ValueError where an index would lie among the data and be taken for a shard."""
    if folder is None or not index.startswith(f"{folder}/"):
        return
    below = index[len(folder) + 1 :].split("/")
    if not any(part.startswith(("_", ".")) for part in below):
        raise ValueError(
            f"out={shown(index)!r} lies among the data, where it would be taken for a shard: leave it out (the index "
            f"then is {shown(default_url(folder))}), or name another folder."
        )


def _folder(url: str, *, is_file: bool) -> str:
    scheme, _, path = url.partition("://")
    http = scheme in ("http", "https")
    if is_glob(path, http):
        path = re.split(r"[*\[]" if http else r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0]
    elif is_file:
        path = path.rpartition("/")[0]
    return f"{scheme}://{path.rstrip('/')}"
