"""The looks of a plan: tables for people, one JSON document for programs.

The figures come from `streamio.cli.report`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from streamio.cli import text
from streamio.plan import IndexedSplits

if TYPE_CHECKING:
    from streamio.cli.report import Piece, Report, Share
    from streamio.settle import Settled

#: Workers that the table has room for; the others are left to `--rank` and `--json`.
MOST = 64

#: Lanes that one line names.
NAMED = 4


def show(report: Report, settled: Settled, rank: int | None) -> None:
    """Print a plan: totals, a table of workers or of one rank's splits, warnings."""
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 10_000  # nothing is cut that goes into a file
    for name, value in _totals(report, settled):
        console.print(f"{name + ':':<16}{value}")
    console.print()
    console.print(_workers(report) if rank is None else _reading(report, settled, rank))
    left = 0 if rank is not None else len(report.shares) - MOST
    if left > 0:
        console.print(f"... and {text.several(left, 'worker')} more: see --rank or --json.")
    for warning in report.warnings:
        console.print(f"\nwarning: {warning}")


def document(report: Report, settled: Settled, rank: int | None) -> dict[str, Any]:
    """A plan as JSON-ready values; `docs/cli.md` describes them.

    Args:
        report: The figures.
        settled: The data set.
        rank: The one rank whose splits are told one by one; None tells all ranks, without them.
    """
    layout, grid = report.layout, report.layout.grid
    shares = [share for share in report.shares if rank in (None, share.rank)]
    return {
        "indexed": report.records is not None,
        "format": settled.format.name,
        "shards": len(settled.shards),
        "splits": len(settled.splits),
        "records": report.records,
        "lanes": [grid.rows, grid.columns],
        "global_batch_size": grid.batch,
        "world_size": layout.world_size,
        "workers": layout.workers,
        "end": report.end,
        "steps": None if report.steps is None else max(report.steps),
        "padding": report.padding,
        "left_out": report.left_out,
        "bytes": report.nbytes,
        "bytes_needed": report.needed,
        "amplification": round(report.amplification, 4),
        "reads": [_share(share, settled, splits=rank is not None) for share in shares],
        "warnings": list(report.warnings),
    }


def _totals(report: Report, settled: Settled) -> Iterator[tuple[str, str]]:
    layout, grid = report.layout, report.layout.grid
    shards, splits = text.several(len(settled.shards), "shard"), text.several(len(settled.splits), "split")
    records = "records not counted" if report.records is None else text.several(report.records, "record")
    yield "data", f"{shards} of {settled.format.name}, {splits}, {records}"
    yield (
        "run",
        f"{text.several(layout.world_size, 'rank')} with {text.several(layout.workers, 'worker')} each, "
        f"global batches of {grid.batch} ({grid.batch // layout.world_size} a rank), end={report.end}",
    )
    yield "lanes", f"{grid.rows} x {grid.columns}"
    if report.steps is not None:
        low, high = min(report.steps), max(report.steps)
        extra = f", {text.several(report.padding, 'record')} of padding" if report.padding else ""
        extra += f", {text.several(report.left_out, 'record')} left out" if report.left_out else ""
        yield "steps", (f"{high:,}" if low == high else f"{low:,} to {high:,}") + extra
    yield (
        "to be read",
        f"{text.size(report.nbytes)}, {report.amplification:.2f} times the {text.size(report.needed)} needed",
    )


def _workers(report: Report) -> Table:
    table = _table("rank", "worker", "lanes (row,column)", "slots", "batches", "splits", "shards", "to be read")
    for share in report.shares[:MOST]:
        counts = [_count(value) for value in (share.slots, share.batches, share.splits, share.shards)]
        table.add_row(str(share.rank), str(share.worker), _lanes(share), *counts, text.size(share.nbytes))
    return table


def _reading(report: Report, settled: Settled, rank: int) -> Table:
    """What one rank's workers read, in order."""
    table = _table("worker", "lane", "records", "to be read", "split")
    for share in report.shares:
        for piece in share.pieces if share.rank == rank else ():
            for part in _parts(piece, settled):
                records = f"{part['from']}-{part['to'] - 1}" if "from" in part else "?"
                where = f"split {part['split']}" if "split" in part else f"bytes {part['start']}-{part['stop'] - 1}"
                cells = [str(share.worker), _lane(piece), records, text.size(part["bytes"])]
                table.add_row(*cells, f"{part['url']} {where}")
    return table


def _share(share: Share, settled: Settled, *, splits: bool) -> dict[str, Any]:
    lanes = []
    for piece in share.pieces:
        lane: dict[str, Any] = {
            "row": piece.row,
            "column": piece.column,
            "slots": piece.slots,
            "batches": piece.batches,
            "splits": list(_parts(piece, settled)) if splits else len(piece.splits),
            "shards": piece.shards,
            "bytes": piece.nbytes,
        }
        lanes.append(lane)
    return {
        "rank": share.rank,
        "worker": share.worker,
        "slots": share.slots,
        "batches": share.batches,
        "splits": share.splits,
        "shards": share.shards,
        "bytes": share.nbytes,
        "lanes": lanes,
    }


def _parts(piece: Piece, settled: Settled) -> Iterator[dict[str, Any]]:
    """The splits of a lane in the order of reading; `from` and `to` are numbers of records within the split."""
    splits, begin, left = settled.splits, piece.begin, piece.slots or 0
    for split in piece.splits.tolist():
        part: dict[str, Any] = {"url": text.url(settled.shards[int(splits.shard[split])].url)}
        if isinstance(splits, IndexedSplits):
            stop = min(int(splits.records[split]), begin + left)
            part |= {"split": int(splits.part[split]), "from": begin, "to": stop, "bytes": int(splits.wire[split])}
            left, begin = left - (stop - begin), 0
        else:
            start, stop = int(splits.start[split]), int(splits.stop[split])
            part |= {"start": start, "stop": stop, "bytes": stop - start}
        yield part


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        words = name.startswith(("lane", "split")) and name != "splits"
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    return table


def _lanes(share: Share) -> str:
    names = [_lane(piece) for piece in share.pieces]
    return " ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _lane(piece: Piece) -> str:
    return f"{piece.row},{'last' if piece.column is None else piece.column}"


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
