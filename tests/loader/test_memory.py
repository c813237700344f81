"""Which allocator Arrow has in a process that reads, each time in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

PROGRAM = """
import pyarrow as pa
{first}
from streamio.loader.memory import keep_freed_memory
keep_freed_memory()
print(pa.default_memory_pool().backend_name)
"""


def allocator(first: str = "", **environment: str) -> str:
    """The name of the allocator in a process that has been told to keep memory."""
    clean = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    program = [sys.executable, "-c", PROGRAM.format(first=first)]
    done = subprocess.run(program, env={**clean, **environment}, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="this build of Arrow has no jemalloc")
def test_arrow_keeps_freed_memory_for_a_moment() -> None:
    assert allocator() == "jemalloc"


def test_an_allocator_that_the_user_has_chosen_stays() -> None:
    assert allocator("pa.set_memory_pool(pa.system_memory_pool())") == "system"
    assert allocator(ARROW_DEFAULT_MEMORY_POOL="mimalloc") == "mimalloc"
