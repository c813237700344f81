"""What the name of a shard tells: the part of its URL that carries the suffix, and how it is compressed.

Nothing is opened here, and formats are chosen in the registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

Codec: TypeAlias = Literal["gz", "zst", "bz2", "xz"]

_CODECS: dict[str, Codec] = {
    ".gz": "gz",
    ".tgz": "gz",
    ".zst": "zst",
    ".bz2": "bz2",
    ".tbz2": "bz2",
    ".xz": "xz",
    ".txz": "xz",
}
_ENDINGS = ("", ".gz", ".zst", ".bz2", ".xz")
_WITHOUT_HOST = ("file", "memory")


def basename(url: str) -> str:
    """The last path segment of a URL, lower-cased: the name that suffixes are looked up in.

    The query and fragment of http URLs are left out. Of a chained URL (`zip://a.jsonl::s3://bucket/b.zip`)
    the first link that has a path counts, which is the file that fsspec opens.
    """
    return _without_query(_own_link(url)[0]).rsplit("/", 1)[-1].lower()


def codec_of(url: str) -> Codec | None:
    """The codec that the last suffix of a URL names; None for anything else."""
    _, dot, suffix = basename(url).rpartition(".")
    return _CODECS.get(dot + suffix)


def path_of(url: str) -> str:
    """The path of a shard within its bucket or host, as it stands in the URL; of a local file the whole path.

    Queries are left out, as they may hold signatures. Of a chained URL it is the path in the archive.
    """
    link, archived = _own_link(url)
    scheme, marked, path = _without_query(link).partition("://")
    if not marked:
        return link
    if archived or scheme.lower() in _WITHOUT_HOST:
        return path
    return path.partition("/")[2]


def with_codecs(suffixes: Iterable[str]) -> tuple[str, ...]:
    """Each of these suffixes plain, then with that of every codec behind it."""
    return tuple(suffix + ending for suffix in suffixes for ending in _ENDINGS)


def _own_link(url: str) -> tuple[str, bool]:
    """The link of a chain that names the file itself, and whether it lies in an archive that follows."""
    links = url.split("::")
    place = next((place for place, link in enumerate(links) if "://" in link), len(links) - 1)
    return links[place], place < len(links) - 1


def _without_query(link: str) -> str:
    if link[:8].lower().startswith(("http://", "https://")):
        return link.split("?", 1)[0].split("#", 1)[0]
    return link
