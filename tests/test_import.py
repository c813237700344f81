"""`import streamio` stays light, and the package is typed."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

import streamio

HEAVY = frozenset(
    ["s3fs", "gcsfs", "pyarrow", "pandas", "obstore", "aiohttp", "botocore", "typer", "rich", "zstandard", "isal"]
)


@pytest.mark.parametrize("make", ["", "streamio.DataLoader(streamio.StreamingDataset('s3://bucket/data'), 8)"])
def test_heavy_packages_are_not_imported_before_they_are_needed(make: str) -> None:
    program = (
        f"import torch, sys; before = set(sys.modules); import streamio; {make}\nprint(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert "streamio" in imported
    assert not imported & HEAVY


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("streamio").joinpath("py.typed").is_file()


def test_importing_the_package_alone_does_not_import_torch() -> None:
    program = (
        "import sys, streamio; assert 'torch' not in sys.modules; streamio.DataLoader; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_is_there() -> None:
    assert all(getattr(streamio, name) is not None for name in streamio.__all__)
    assert set(streamio.__all__) <= set(dir(streamio))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        streamio.Nothing  # noqa: B018
