"""`streamio cat`: prints records as a run would read them, and says which can't be read.

Reading itself is `streamio.cli.records`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from streamio.cli import data, exits, options, text


def cat(
    urls: options.Urls,
    count: Annotated[
        int, typer.Option("-n", "--records", metavar="N", min=0, help="Records to print; 0 prints all.")
    ] = 10,
    columns: options.Columns = None,
    shard: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=0, help="Read only this shard, as numbered by `ls`.", show_default=False),
    ] = None,
    source: Annotated[
        bool, typer.Option("--source", help="Add where each record comes from: __shard__ and __index__.")
    ] = False,
    storage_option: options.StorageOption = None,
    endpoint_url: options.EndpointUrl = None,
    format: options.Format = None,  # noqa: A002
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    debug: options.Debug = False,
) -> None:
    """Print records, a line of JSON for each, in the order of shards and unshuffled.

    Bytes are shown by their number; with --json they are written out in base64. Records that can't be read are told
    on stderr.
    """
    from streamio.cli.records import read
    from streamio.observe.drops import Drop, DropLog

    given = options.storage_options(storage_option, endpoint_url)
    wanted = options.columns(columns)
    shards = data.listed(urls, given, format)
    if shard is not None and shard >= len(shards):
        raise typer.BadParameter(
            f"{shard}: there are {text.several(len(shards), 'shard')}, from 0 on", param_hint="--shard"
        )
    chosen = shards if shard is None else [shards[shard]]
    drops = DropLog()
    printed = 0
    found = read(chosen, given, format, wanted, provenance=source, ahead=not count)
    try:
        for item in found:
            if isinstance(item, Drop):
                for drop in drops.add([item]):
                    at = f" at {drop.position}" if drop.position else ""
                    exits.note(f"bad record: {text.url(drop.url)}{at}: {drop.reason}: {drop.message}")
                continue
            typer.echo(text.json_line(item, whole=as_json))
            printed += 1
            if printed == count:
                break
    finally:
        found.close()
        if drops.total:
            reasons = ", ".join(f"{reason} {number:,}" for reason, number in drops.reasons.most_common())
            exits.note(f"{text.several(drops.total, 'bad record')} left out ({reasons})")
    if drops.total and not printed:
        raise typer.Exit(exits.FAILED)
