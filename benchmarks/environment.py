"""Makes the environment of the peers, in which all readers run: streamio and they see the same torch and clients.

peers.txt pins everything, and is installed without looking at what the packages ask for: torchvision's build would
pull another torch, and MosaicML's numpy is older than everybody else's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.server import ROOT

FOLDER = ROOT / ".venv-peers"
PINS = Path(__file__).with_name("peers.txt")


def prepare() -> Path:
    """Make `.venv-peers` or bring it up to date; returns its Python."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(FOLDER))
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    _run(*pip, "-r", str(PINS))
    _run(*pip, "-e", str(ROOT))
    for path in FOLDER.glob("lib/python*/site-packages/torchvision/_meta_registrations.py"):
        path.write_text("")  # it wants operators of a build for the same torch; MosaicML needs the import only
    _run(
        str(python), "-W", "ignore", "-c", "import streamio, streaming, litdata, datasets, webdataset, s3torchconnector"
    )
    return python


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)  # noqa: S603 - our own commands
