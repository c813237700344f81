"""`streamio index`: reads a data set once and writes its index. How is decided in `streamio.index.build`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from streamio.cli import options, text

if TYPE_CHECKING:
    from streamio.index.build import Progress

#: Damaged shards that are named; --json has all.
NAMED = 5


def index(
    urls: options.Urls,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where to write it. Default: _streamio/index.parquet in the common folder of the URLs.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Processes that read. Default: one a processor.", show_default=False),
    ] = None,
    columns: options.Columns = None,
    storage_option: options.StorageOption = None,
    endpoint_url: options.EndpointUrl = None,
    format: options.Format = None,  # noqa: A002
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    debug: options.Debug = False,
) -> None:
    """Read a data set once and write its index: counts and seek points of every shard, in one parquet object.

    With it every format has a length, equal steps on all ranks, and resumes without reading again. Only new and changed
    shards are read where there is one already; what was broken off goes on. Under torchrun ranks share the work.
    With --json one JSON document.
    """
    from streamio.index.build import build_index

    given = options.storage_options(storage_option, endpoint_url)
    wanted = options.columns(columns)
    with _ranks(), _bar() as progress:
        built = build_index(
            urls, out, columns=wanted, storage_options=given, format=format, workers=workers, progress=progress
        )
    if int(os.environ.get("RANK", "0")):  # one of them tells
        return
    if as_json:
        typer.echo(text.json_line(built.to_json()))
        return
    told = [text.several(built.shards, "shard"), text.several(built.records, "record")]
    told += [f"{built.read:,} read", f"{built.kept:,} kept", f"{built.seconds:.1f} s"]
    if built.failed:
        told.append(f"{built.failed:,} damaged")
    typer.echo(f"{text.url(built.url)}: {', '.join(told)}")
    for url, error in built.damaged[:NAMED]:
        typer.echo(f"  {text.url(f'{url}: {error}')}")
    if built.failed > NAMED:
        typer.echo(f"  and {built.failed - NAMED:,} more (--json names all)")


@contextmanager
def _ranks() -> Iterator[None]:
    """A process group under torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "MASTER_ADDR" not in os.environ:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """A progress bar on a terminal; None where there is none, so that the log tells."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = ("Indexing", progress.BarColumn(), progress.MofNCompleteColumn(), "shards", progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def told(done: int, shards: int, nbytes: int) -> None:
            bar.update(task, completed=done, total=shards)

        yield told
