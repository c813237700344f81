"""What the name of a shard tells: the part of its URL that carries the suffix, and how it is compressed.

Nothing is opened here, and formats are chosen in the registry.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Codec: TypeAlias = Literal["gz", "zst"]

_CODECS: dict[str, Codec] = {".gz": "gz", ".tgz": "gz", ".zst": "zst"}


def basename(url: str) -> str:
    """The last path segment of a URL, lower-cased: the name that suffixes are looked up in.

    The query and fragment of http URLs are left out. Of a chained URL (`zip://a.jsonl::s3://bucket/b.zip`)
    the first link that has a path counts, which is the file that fsspec opens.
    """
    links = url.split("::")
    name = next((link for link in links if "://" in link), links[-1])
    if name[:8].lower().startswith(("http://", "https://")):
        name = name.split("?", 1)[0].split("#", 1)[0]
    return name.rsplit("/", 1)[-1].lower()


def codec_of(url: str) -> Codec | None:
    """The codec that the last suffix of a URL names; None for anything else."""
    _, dot, suffix = basename(url).rpartition(".")
    return _CODECS.get(dot + suffix)
