"""`streamio plan`: who would read what in a run, before there is one.

The figures are `streamio.cli.report`'s, their looks `streamio.cli.tables`'.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamio.cli import data, options, text

if TYPE_CHECKING:
    from streamio.cli.report import Layout, Report
    from streamio.settle import Settled


class End(str, Enum):
    """The values of `--end`."""

    even = "even"
    exact = "exact"
    cycle = "cycle"


def plan(
    urls: options.Urls,
    world_size: Annotated[int, typer.Option(metavar="W", min=1, help="Ranks.")] = 1,
    workers: options.Workers = 0,
    lanes: Annotated[
        str | None,
        typer.Option(
            metavar="R,C", help="Rows and columns of the lane grid. Default: W,N as given.", show_default=False
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="b", min=1, help="Records per rank and batch. Default: 1.", show_default=False),
    ] = None,
    global_batch_size: Annotated[
        int | None,
        typer.Option(metavar="B", min=1, help="Records per batch over all ranks, instead.", show_default=False),
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Permute, as shuffle=True does.")] = False,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the permutation.")] = 0,
    epoch: Annotated[int, typer.Option(metavar="E", min=0, help="Epoch.")] = 0,
    end: Annotated[
        End | None,
        typer.Option(help="End of an epoch. Default: even where records are counted.", show_default=False),
    ] = None,
    drop_last: Annotated[bool, typer.Option("--drop-last", help="Leave the short last batch out.")] = False,
    rank: Annotated[
        int | None,
        typer.Option(metavar="RANK", min=0, help="Show what this rank reads, in order.", show_default=False),
    ] = None,
    columns: options.Columns = None,
    partitions: options.Partitions = None,
    filters: options.Filters = None,
    index: options.Index = "auto",
    storage_option: options.StorageOption = None,
    endpoint_url: options.EndpointUrl = None,
    format: options.Format = None,  # noqa: A002
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    debug: options.Debug = False,
) -> None:
    """Show who reads what: ranks, workers and lanes with their slots, splits and bytes, and what to look out for.

    Parquet footers or the index are read, data are not. With --json one JSON document.
    """
    from streamio.cli import tables
    from streamio.cli.report import Layout
    from streamio.plan import Grid

    given = options.storage_options(storage_option, endpoint_url)
    wanted, filtered, indexed = options.columns(columns), options.filters(filters), options.index(index)
    if batch_size is not None and global_batch_size is not None:
        raise typer.BadParameter(
            "--batch-size and --global-batch-size say the same: give one", param_hint="--batch-size"
        )
    if rank is not None and rank >= world_size:
        raise typer.BadParameter(
            f"{rank}: there are {text.several(world_size, 'rank')}, from 0 on", param_hint="--rank"
        )
    batch = global_batch_size if global_batch_size is not None else (batch_size or 1) * world_size
    wide = None if lanes is None else _lanes(lanes)
    grid = Grid.of(wide, batch, world_size=world_size, workers=max(1, workers))  # before anything is listed
    layout = Layout(grid, world_size, workers)
    settled = data.settled(urls, given, format, wanted, filtered, indexed, "hive" if partitions else None)
    report = _report(settled, layout, end.value if end else None, seed, epoch, shuffle, drop_last)
    if as_json:
        typer.echo(text.json_line(tables.document(report, settled, rank)))
    else:
        tables.show(report, settled, rank)


def _lanes(given: str) -> tuple[int, int]:
    match = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", given)
    if match is None:
        raise typer.BadParameter(f"{given!r}: takes rows and columns, as in 8,4", param_hint="--lanes")
    return int(match[1]), int(match[2])


def _report(
    settled: Settled,
    layout: Layout,
    end: Literal["even", "exact", "cycle"] | None,
    seed: int,
    epoch: int,
    shuffle: bool,
    drop_last: bool,
) -> Report:
    from streamio.cli import report
    from streamio.plan import IndexedSplits

    if isinstance(settled.splits, IndexedSplits):
        return report.indexed(
            settled.splits, layout, seed=seed, epoch=epoch, shuffle=shuffle, end=end or "even", drop_last=drop_last
        )
    made = report.streamed(settled.splits, layout, seed=seed, epoch=epoch, shuffle=shuffle, end=end or "exact")
    if end is None and layout.world_size > 1:
        missing = 'A run on several ranks must be told: end="exact" (as shown here) or end="cycle".'
        return replace(made, warnings=(missing, *made.warnings))
    return made
