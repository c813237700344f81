"""The command: python -m benchmarks prepare | data | run | loop | resume | ... | report; --help tells all."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
from pathlib import Path

from benchmarks import cases, data, environment, plots, report, runner, server
from benchmarks.special import Plan

SPECIAL = ("loop", "resume", "memory", "startup", "shuffle", "cpu", "index")
DOCUMENT = server.ROOT / "docs" / "performance.md"
FIGURES = server.ROOT / "docs" / "figures"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1 where a case failed."""
    options = parser().parse_args(arguments)
    if options.command == "prepare":
        python = environment.prepare()
        print(f"Everything else runs in it: {python.relative_to(server.ROOT)} -m benchmarks run")
        return 0
    if options.command == "report":
        for path in options.results:
            publish(path, options.into)
        return 0
    options.home.mkdir(parents=True, exist_ok=True)
    with server.running(options.home, data.bucket_name(options.scale)) as place:
        if options.command == "data":
            data.make(place, options.scale)
            return 0
        plan = chosen(options)
        if not plan.cases:
            print(f"no case is named like {options.only!r}; the names are those of --list")
            return 1
        if options.list:
            print("\n".join(case.name for case in plan.cases))
            return 0
        header = {"what": options.command, "profile": options.profile, "scale": options.scale}
        out = options.out or options.home / f"{options.command}-{options.profile}.json"
        with server.shaped(place, options.profile) as shaped:
            found = runner.run(plan.cases, shaped, options.repeats, before=plan.before, header=header, out=out)
    tables = report.report(found)
    out.with_suffix(".md").write_text(tables)
    print(f"\n{tables}\nWritten: {out}, {out.with_suffix('.md')}")
    try:
        print(*plots.plot(found, out.parent / "figures"), sep="\n")
    except ModuleNotFoundError as error:
        print(f"no plots: {error}; they need the environment that `prepare` makes")
    return int(any("failed" in result for result in found["results"]))


def chosen(options: argparse.Namespace) -> Plan:
    """The cases of a command, as far as `--only` lets them through."""
    if options.command == "run":
        plan = Plan(cases.all_cases(options.profile))
    else:
        module = importlib.import_module(f"benchmarks.special.{options.command}")
        plan = module.plan(options.home / "state")
    patterns = options.only.split(",")
    picked = [case for case in plan.cases if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)]
    sets = {(case.kind, case.format) for case in picked}
    return Plan(picked, [case for case in plan.before if (case.kind, case.format) in sets])


def publish(path: Path, document: Path) -> None:
    """Put the tables and plots of one file of results into the document."""
    found = json.loads(path.read_text())
    name = f"{found['what']} {found['profile']}"
    figures = plots.plot(found, FIGURES)
    images = "".join(f"\n![{figure.stem}](figures/{figure.name})\n" for figure in figures)
    report.insert_into(document, name, report.report(found) + images)
    print(f"{document}: {name}")


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description="streamio, its floors and its peers.")
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="make .venv-peers, the environment of all readers")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--home", type=Path, default=server.HOME, help="data and results; default: .bench")
    common.add_argument("--scale", type=float, default=1.0, help="share of the full data; default 1")
    commands.add_parser("data", parents=[common], help="make the data, unless they are there")
    measured = argparse.ArgumentParser(add_help=False, parents=[common])
    measured.add_argument("--profile", choices=("loopback", "cloud"), default="loopback")
    measured.add_argument("--repeats", type=int, default=5)
    measured.add_argument(
        "--only", default="*", metavar="PATTERN", help="cases named like one of these, as 'text/parquet/*,images/*'"
    )
    measured.add_argument("--out", type=Path, help="results; default: HOME/COMMAND-PROFILE.json, tables beside it")
    measured.add_argument("--list", action="store_true", help="only name the cases")
    commands.add_parser("run", parents=[measured], help="the main table: floors, streamio, peers")
    for name in SPECIAL:
        module = importlib.import_module(f"benchmarks.special.{name}")
        commands.add_parser(name, parents=[measured], help=(module.__doc__ or "").splitlines()[0])
    told = commands.add_parser("report", help="put results into docs/performance.md")
    told.add_argument("results", nargs="+", type=Path)
    told.add_argument("--into", type=Path, default=DOCUMENT, help="default: docs/performance.md")
    return top


if __name__ == "__main__":
    raise SystemExit(main())
