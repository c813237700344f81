"""What to look out for in a plan, as sentences for people. Pure functions of its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamio.cli import text

if TYPE_CHECKING:
    from streamio.cli.report import Layout, Report

#: Bytes read over bytes needed from which on it is worth a warning.
AMPLIFIED = 1.25

#: Bytes of the largest lane over those of the mean lane from which on streamed lanes are called uneven.
UNEVEN = 1.2


def idle(layout: Layout) -> list[str]:
    """Workers that no column is left for."""
    wanted, columns = max(1, layout.wanted), layout.grid.columns
    idle = wanted - layout.workers
    if not idle:
        return []
    names = f"worker {wanted - 1}" if idle == 1 else f"workers {layout.workers} to {wanted - 1}"
    return [
        f"Idle on each rank: {names}. {columns} columns of lanes can't be shared evenly by {wanted} workers; "
        f"give --workers {layout.workers}, or --lanes {layout.grid.rows},{wanted}."
    ]


def indexed(report: Report, full: int) -> list[str]:
    """What to look out for in an indexed plan of `full` full global batches."""
    grid = report.layout.grid
    warnings = []
    if not full and report.left_out:
        warnings.append(f"drop_last leaves nothing: {report.records} records are fewer than a global batch.")
    elif full < grid.columns:
        warnings.append(
            f"Empty lanes: {(grid.columns - full) * grid.rows} of {grid.rows * grid.columns}. "
            f"There are {full} full global batches for {grid.columns} columns; take fewer workers or smaller batches."
        )
    if report.steps and len(set(report.steps)) > 1:
        warnings.append(
            f"Ranks make {min(report.steps)} or {max(report.steps)} steps: don't let them wait for each other."
        )
    if report.amplification >= AMPLIFIED:
        warnings.append(
            f"Every byte is read {report.amplification:.2f} times, as lanes begin and end within splits. Fewer "
            "lanes or smaller splits (of parquet: row groups) lessen it."
        )
    return warnings


def streamed(report: Report, splits: int) -> list[str]:
    """What to look out for in a streamed plan of `splits` splits."""
    grid = report.layout.grid
    lanes = grid.rows * grid.columns
    warnings = []
    if splits < lanes and report.end == "cycle":
        warnings.append(f"{lanes - splits} of {lanes} lanes share a split with another and repeat its records.")
    elif splits < lanes:
        idle = [rank for rank in range(grid.rows) if rank >= splits]
        who = f"rank {idle[0]}" if len(idle) == 1 else f"ranks {idle[0]} to {idle[-1]}" if idle else ""
        which = f" Nothing at all for {who}." if who else ""
        warnings.append(
            f"Empty lanes: {lanes - splits} of {lanes}, for want of splits ({splits}).{which} Take fewer workers, "
            "or data in more shards."
        )
    sizes = [share.nbytes for share in report.shares if share.nbytes]
    if sizes and max(sizes) >= UNEVEN * (sum(sizes) / len(sizes)):
        warnings.append(
            f"Uneven lanes: the largest holds {text.size(max(sizes))}, the smallest {text.size(min(sizes))}; those "
            "with less end earlier."
        )
    if report.end == "exact" and grid.rows > 1:
        warnings.append("Ranks may end at different steps: don't let them wait for each other.")
    return warnings
