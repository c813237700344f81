"""One case as a value, and the process that runs it: python -m benchmarks.case JSON.

Such a process measures one thing once, prints one line of JSON, and ends; the runner starts it.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.place import DataSet, Place

MARK = "benchmark-result "
"""Begins the line of the result: libraries print too."""


class WrongError(Exception):
    """A case delivered other records than there are."""


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        name: As tables have it; no two cases of a run share one.
        measure: Module of this package whose `measure(case, place, data, folder)` returns the figures.
        reader: Module of `benchmarks.readers`, or of whatever `measure` looks for.
        kind: `images` or `text`.
        format: See `benchmarks.data.FORMATS`.
        workers: Worker processes.
        output: What batches are made of.
        batch: Records of a batch.
        extra: What else `measure` wants to know.
    """

    name: str
    measure: str
    reader: str
    kind: str
    format: str
    workers: int = 0
    output: str = "records"
    batch: int = 32
    extra: dict[str, Any] = field(default_factory=dict)


def job(case: Case, place: Place, data: DataSet, folder: Path) -> str:
    """The argument of the process."""
    return json.dumps({"case": asdict(case), "place": place.to_json(), "data": asdict(data), "folder": str(folder)})


def check(data: DataSet, records: int, id_sum: int, times: int = 1) -> None:
    """Compare what came with what there is.

    Raises:
        WrongError: They differ.
    """
    for what, got, wanted in (("records", records, data.records), ("sum of ids", id_sum, data.id_sum)):
        if got != wanted * times:
            raise WrongError(f"{what}: {got:,} came, {wanted * times:,} are there")


def main() -> int:
    """Run the case that the argument tells."""
    told = json.loads(sys.argv[1])
    case, place = Case(**told["case"]), Place(**told["place"])
    try:
        module = importlib.import_module(f"benchmarks.{case.measure}")
        result = module.measure(case, place, DataSet.from_json(told["data"]), Path(told["folder"]))
    except BaseException as error:  # noqa: BLE001 - whatever it was is the result
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        result = {"failed": reason if len(reason) < 400 else f"{reason[:120]} ... {reason[-240:]}"}
    print(MARK + json.dumps(result), flush=True)
    return "failed" in result


if __name__ == "__main__":
    sys.exit(main())
