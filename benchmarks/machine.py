"""What a table must say of where it was made: cores, memory, system, and the versions of all that takes part."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import distributions
from pathlib import Path

PACKAGES = (
    "streamio", "torch", "numpy", "pyarrow", "obstore", "fsspec", "s3fs", "msgspec", "orjson", "zstandard", "isal",
    "webdataset", "mosaicml-streaming", "litdata", "polars", "datasets", "s3torchconnector", "boto3",
)  # fmt: skip


def description() -> dict[str, str | int | float]:
    """Cores, memory, processor, system, Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that are installed; streamio's with the commit it was measured at."""
    installed = {each.name.lower(): each.version for each in distributions()}
    found = {name: installed[name] for name in PACKAGES if name in installed}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - whichever git there is
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if commit.returncode == 0 and "streamio" in found:
        found["streamio"] += f" at {commit.stdout.strip()}"
    return found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
