"""Small data of the benchmarks in a bucket of a real server, without the peers' formats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import data
from benchmarks.place import Place
from benchmarks.server import place_of

SCALE = 0.004
FORMATS = {"images": ("parquet",), "text": ("parquet",)}


@pytest.fixture(scope="session")
def place(s3_server: Any) -> Place:
    made = place_of(s3_server, data.bucket_name(SCALE))
    data.make(made, SCALE, FORMATS, say=lambda _: None)
    return replace(made)
