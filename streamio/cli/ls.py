"""`streamio ls`: the shards of a data set and, where asked, their splits. It opens a shard for its splits only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamio.cli import data, options, text

if TYPE_CHECKING:
    from streamio.settle import Settled
    from streamio.storage.shards import Shard


def ls(
    urls: options.Urls,
    splits: Annotated[bool, typer.Option("--splits", help="Show splits and, where known, their records.")] = False,
    storage_option: options.StorageOption = None,
    endpoint_url: options.EndpointUrl = None,
    format: options.Format = None,  # noqa: A002
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    debug: options.Debug = False,
) -> None:
    """List the shards of a data set: number, size, version (ETag, generation or time), URL.

    With --json a line of JSON for each shard.
    """
    given = options.storage_options(storage_option, endpoint_url)
    settled = data.settled(urls, given, format) if splits else None
    shards = settled.shards if settled else data.listed(urls, given, format)
    parts = _parts(settled) if settled else {}
    broken = {drop.url: drop.message for drop in settled.drops} if settled else {}
    count = records = 0
    widest = 0 if as_json else max(len(shard.version or "") for shard in shards)
    for number, shard in enumerate(shards):
        own = parts.get(number, [])
        count += len(own)
        records += sum(part.get("records", 0) for part in own)
        if as_json:
            typer.echo(text.json_line(_line(number, shard, own if splits else None, broken.get(shard.url))))
            continue
        typer.echo(f"{number:>6}  {text.size(shard.size):>9}  {shard.version or '':<{widest}}  {text.url(shard.url)}")
        for part in own:
            typer.echo(f"{'':>19}{_shown(part)}")
        if shard.url in broken:
            typer.echo(f"{'':>19}can't be read: {broken[shard.url]}")
    if not as_json:
        total = [text.several(len(shards), "shard"), text.size(int(shards.sizes.sum()))]
        total += [text.several(count, "split")] if splits else []
        total += [text.several(records, "record")] if records else []
        typer.echo(", ".join(total))


def _parts(settled: Settled) -> dict[int, list[dict[str, Any]]]:
    """The splits of each shard, by the shard's number."""
    from streamio.plan import IndexedSplits

    found: dict[int, list[dict[str, Any]]] = {}
    splits = settled.splits
    if isinstance(splits, IndexedSplits):
        columns = (splits.shard, splits.part, splits.first, splits.records, splits.wire)
        for shard, part, first, records, nbytes in zip(*(c.tolist() for c in columns), strict=True):
            entry = {"split": part, "first": first, "records": records, "bytes": nbytes}
            found.setdefault(shard, []).append(entry)
        return found
    for shard, start, stop in zip(*(c.tolist() for c in (splits.shard, splits.start, splits.stop)), strict=True):
        found.setdefault(shard, []).append({"start": start, "stop": stop, "bytes": stop - start})
    return found


def _line(number: int, shard: Shard, parts: list[dict[str, Any]] | None, error: str | None) -> dict[str, Any]:
    line: dict[str, Any] = {
        "number": number,
        "url": text.url(shard.url),
        "size": shard.size,
        "version": shard.version,
    }
    if parts is not None:
        line["splits"] = parts
    if error is not None:
        line["error"] = error
    return line


def _shown(part: dict[str, Any]) -> str:
    if "records" in part:
        records = text.several(part["records"], "record")
        return f"split {part['split']:>4}  {text.size(part['bytes']):>9}  {records} from {part['first']} on"
    return f"bytes {part['start']} to {part['stop']}  {text.size(part['bytes'])}"
