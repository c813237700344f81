"""What allocators do in a process that reads, each time in a process of its own."""

from __future__ import annotations

import os
import platform
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

FAULTS = """
import resource, sys
if sys.argv[1] == "kept":
    from streamio.loader.memory import keep_freed_memory
    keep_freed_memory()

def fill():
    blocks = [b"x" * (1 << 20) for _ in range(12)]

fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_freed_blocks_are_used_again_in_place_of_fresh_pages() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}

    def faults(how: str) -> int:
        program = [sys.executable, "-c", FAULTS, how]
        done = subprocess.run(program, env=clean, capture_output=True, text=True, check=True, timeout=60)
        return int(done.stdout)

    assert faults("kept") * 10 < faults("as it is")
