"""Tables from results: floors, readers, failures; and their place in docs/performance.md between two markers."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from benchmarks.summary import Runs, Summary, by_case, markdown, median, spread

KIND = {"images": "Images", "text": "Text"}


def report(found: dict[str, Any]) -> str:
    """All tables of one file of results, as markdown."""
    summary = by_case(found["results"])
    if found["what"] == "run":
        tables = main_tables(summary, found["profile"])
    else:
        tables = importlib.import_module(f"benchmarks.special.{found['what']}").table(summary)
    return "\n".join([heading(found), tables, failures(found["results"])]).rstrip() + "\n"


def heading(found: dict[str, Any]) -> str:
    """Where, when and with what."""
    machine = found["machine"]
    numbers = f"{found['repeats']} interleaved repeats (least..most)"
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    sizes = ", ".join(f"{each['kind']}/{each['format']} {each['mb']:,} MB" for each in found["sets"])
    return (
        f"{found['date'][:10]}, profile `{found['profile']}`, scale {found['scale']:g}, "
        f"medians of {numbers}. {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gb']:g} GB, {machine['system']}, Python {machine['python']}; "
        "the server shares the cores.\n\n"
        f"Versions: {versions}.\n\nObjects: {sizes}.\n"
    )


def main_tables(summary: Summary, profile: str) -> str:
    """Floors, then one table of readers for each kind and number of workers."""
    floors = {case: runs for case, runs in summary.items() if runs[0]["measure"] == "floors"}
    readers = {case: runs for case, runs in summary.items() if runs[0]["measure"] == "throughput"}
    parts = [_floor_table(floors, profile)]
    for kind in KIND:
        for workers in sorted({runs[0]["workers"] for runs in readers.values()}):
            chosen = {
                case: runs for case, runs in readers.items() if (runs[0]["kind"], runs[0]["workers"]) == (kind, workers)
            }
            if chosen:
                parts.append(f"**{KIND[kind]}, {workers} workers**\n\n{_reader_table(chosen, floors)}")
    return "\n".join(parts)


def failures(results: Runs) -> str:
    """What failed, with its reason."""
    failed = [result for result in results if "failed" in result]
    if not failed:
        return ""
    rows = [[each["case"], str(each["repeat"]), each["failed"].replace("|", "/")] for each in failed]
    return "Failed:\n\n" + markdown(["case", "repeat", "reason"], rows)


def wire_floor(floors: Summary, kind: str, form: str) -> Runs | None:
    """The runs of the fastest way of obstore to read a set."""
    found = [runs for case, runs in floors.items() if case.startswith(f"{kind}/{form}/floor-wire/")]
    return min(found, key=lambda runs: median(runs, "seconds") or 0, default=None)


def decode_floor(floors: Summary, kind: str, form: str, output: str) -> Runs | None:
    """The runs of the fastest decoder from memory that makes this output."""
    arrow = form == "parquet" and output != "records"
    found = [
        runs
        for case, runs in floors.items()
        if case.startswith(f"{kind}/{form}/floor-decode/") and case.rpartition("/")[2].startswith("arrow") == arrow
    ]
    return min(found, key=lambda runs: median(runs, "seconds") or 0, default=None)


def _floor_table(floors: Summary, profile: str) -> str:
    rows = []
    for kind, form in dict.fromkeys((runs[0]["kind"], runs[0]["format"]) for runs in floors.values()):
        best = wire_floor(floors, kind, form)
        if best is not None:
            rows.append(_floor_row(best))
        decoders = [case for case in floors if case.startswith(f"{kind}/{form}/floor-decode/")]
        rows += [_floor_row(floors[case]) for case in decoders]
    if not rows:
        return ""
    note = "Wire: obstore, all objects in byte ranges, the best of all numbers of connections; decoders: from memory."
    if profile == "cloud":
        note += f" The best is the ceiling of the shaper itself. {_search(floors)}"
    names = ["floor", "records/s", "MB/s of records", "MB/s on the wire", "CPU s a GB", "requests"]
    return f"**Floors**\n\n{note}\n\n{markdown(names, rows)}"


def _floor_row(runs: Runs) -> list[str]:
    return [
        runs[0]["case"].replace("/floor-", " "),
        spread(runs, "records_per_second", "{:,.0f}"),
        spread(runs, "mb_per_second", "{:,.0f}"),
        spread(runs, "wire_mb_per_second", "{:,.0f}"),
        spread(runs, "cpu_seconds_per_gb", "{:.2f}"),
        _requests(runs),
    ]


def _search(floors: Summary) -> str:
    """What each number of connections brought, for the largest set."""
    wires = {case: runs for case, runs in floors.items() if "/floor-wire/" in case}
    if not wires:
        return ""
    largest = max(wires.values(), key=lambda runs: runs[0]["bytes_read"])[0]
    rates = [
        f"{case.rpartition('/')[2]} {median(runs, 'wire_mb_per_second') or 0:,.0f}"
        for case, runs in wires.items()
        if (runs[0]["kind"], runs[0]["format"]) == (largest["kind"], largest["format"])
    ]
    return f"Range and connections, MB/s, {largest['kind']} as {largest['format']}: {', '.join(rates)}."


def _reader_table(chosen: Summary, floors: Summary) -> str:
    rows = []
    for runs in sorted(chosen.values(), key=lambda runs: -(median(runs, "records_per_second") or 0)):
        first = runs[0]
        kind, form, label, _ = first["case"].split("/")
        peaks = [{"peak": (run["peak_rss"] + run.get("children_peak_rss", 0)) / 1e6} for run in runs]
        rows.append(
            [
                f"{label}, {form}",
                spread(runs, "records_per_second", "{:,.0f}"),
                spread(runs, "mb_per_second", "{:,.0f}"),
                _share(wire_floor(floors, kind, form), runs),
                _share(decode_floor(floors, kind, form, first["output"]), runs),
                spread(runs, "first_seconds", "{:.2f}"),
                spread(runs, "setup_seconds", "{:.2f}"),
                spread(runs, "cpu_seconds_per_gb", "{:.2f}"),
                spread(peaks, "peak", "{:,.0f}"),
                _requests(runs),
            ]
        )
    names = ["reader", "records/s", "MB/s", "of the wire", "of the decoder", "first batch, s", "set-up, s",
             "CPU s a GB", "peak MB", "requests"]  # fmt: skip
    return markdown(names, rows)


def _share(floor: Runs | None, runs: Runs) -> str:
    if floor is None:
        return "-"
    return f"{(median(floor, 'seconds') or 0) / (median(runs, 'seconds') or 1):.2f}"


def _requests(runs: Runs) -> str:
    name = "wire_requests" if "wire_requests" in runs[0] else "requests"
    return spread(runs, name, "{:,.0f}")


def insert(text: str, name: str, tables: str) -> str:
    """A document with the tables between `<!-- results NAME -->` and `<!-- end NAME -->`.

    Raises:
        ValueError: The document has no such markers.
    """
    pattern = re.compile(rf"(<!-- results {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the document has no `<!-- results {name} -->` and `<!-- end {name} -->`")
    return pattern.sub(lambda match: f"{match[1]}\n{tables}\n{match[2]}", text)


def insert_into(path: Path, name: str, tables: str) -> None:
    """`insert` into a file."""
    path.write_text(insert(path.read_text(), name, tables))
