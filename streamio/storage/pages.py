"""Listings of s3:// and gs:// page by page, through the clients that fsspec's file systems hold.

`find` of s3fs and gcsfs holds dictionaries of all objects, some 1.5 KB each, before it gives the first away.
Here a page of names goes on before the next one is fetched, and a page that fails is fetched again alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from streamio.storage.urls import bounded

Info: TypeAlias = Mapping[str, Any]
Entry: TypeAlias = tuple[str, Info]
Page: TypeAlias = "tuple[list[Entry], str | None]"

_PAGE = 60.0
"""Seconds for one page, with the tries that the client makes by itself."""


def paged(
    scheme: str, fs: Any, path: str, *, flat: bool, call: Callable[[Callable[[], Page]], Page]
) -> Iterator[Entry]:
    """Everything whose path begins with a text.

    Args:
        scheme: `s3` or `gs`.
        fs: Its file system.
        path: Bucket and the beginning of the keys.
        flat: All keys; else those without a further slash, and the folders beside them.
        call: Makes one request, with its retries.

    Yields:
        Path (bucket and key; of a folder without the slash at its end) and `type`, `size`, and ETag or generation.
    """
    request = _s3_page if scheme == "s3" else _gs_page
    bucket, _, prefix = path.partition("/")
    if path.startswith("arn:"):  # an access point has slashes of its own
        bucket, prefix, _ = fs.split_path(path)
    token: str | None = None
    while True:
        entries, token = call(lambda token=token: request(fs, bucket, prefix, flat, token))  # type: ignore[misc]
        yield from entries
        if token is None:
            return


def _s3_page(fs: Any, bucket: str, prefix: str, flat: bool, token: str | None) -> Page:
    arguments = {"Bucket": bucket, "Prefix": prefix, **fs.req_kw}
    if not flat:
        arguments["Delimiter"] = "/"
    if token is not None:
        arguments["ContinuationToken"] = token
    answer = bounded(fs, "call_s3", "list_objects_v2", seconds=_PAGE, **arguments)
    entries: list[Entry] = [
        (f"{bucket}/{item['Key']}", {"type": "file", "size": item["Size"], "ETag": item.get("ETag")})
        for item in answer.get("Contents", ())
    ]
    entries += _folders(bucket, (item["Prefix"] for item in answer.get("CommonPrefixes", ())))
    return entries, answer.get("NextContinuationToken") if answer.get("IsTruncated") else None


def _gs_page(fs: Any, bucket: str, prefix: str, flat: bool, token: str | None) -> Page:
    answer = bounded(
        fs,
        "call",
        "GET",
        "b/{}/o",
        bucket,
        json_out=True,
        seconds=_PAGE,
        prefix=prefix or None,
        delimiter=None if flat else "/",
        pageToken=token,
        maxResults=5000,
        fields="items(name,size,generation),prefixes,nextPageToken",
    )
    entries: list[Entry] = [
        (
            f"{bucket}/{item['name']}",
            {"type": "file", "size": int(item["size"]), "generation": item.get("generation")},
        )
        for item in answer.get("items", ())
    ]
    entries += _folders(bucket, answer.get("prefixes", ()))
    return entries, answer.get("nextPageToken") or None


def _folders(bucket: str, prefixes: Any) -> Iterator[Entry]:
    for prefix in prefixes:
        yield f"{bucket}/{prefix.rstrip('/')}", {"type": "directory"}
