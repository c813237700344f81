"""What allocators do with freed memory in a process that reads: they keep it for a moment.

Row groups, parts and records come and go many times a second, and fresh pages cost more than filling them.
"""

from __future__ import annotations

import os

_BLOCK = 8 << 20
"""Bytes of the block that glibc is shown: it keeps up to twice as many in each of its arenas from then on."""


def keep_freed_memory() -> None:
    """Let freed memory be used again in place of fresh pages.

    Arrow allocates from jemalloc, which gives memory back about a second after it was freed; its usual allocator gives
    large blocks back at once. Nothing changes where an allocator was chosen, by `ARROW_DEFAULT_MEMORY_POOL` or
    `pyarrow.set_memory_pool`, or where Arrow is built without jemalloc.

    glibc, which holds the clients' parts and Python's records, learns from the largest block that was ever freed how
    much to keep: it is shown one. Nothing changes where `mallopt` or its variables of the environment have told it.
    """
    bytes(_BLOCK)  # of pages that are never touched
    import pyarrow as pa

    chosen = "ARROW_DEFAULT_MEMORY_POOL" in os.environ or pa.default_memory_pool().backend_name != "mimalloc"
    if chosen or "jemalloc" not in pa.supported_memory_backends():
        return
    pa.set_memory_pool(pa.jemalloc_memory_pool())
    pa.allocate_buffer(1)  # where its first block is a large one, made by a thread, it was seen to keep nothing
