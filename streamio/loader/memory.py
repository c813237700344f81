"""Which allocator Arrow uses in a process that reads: one that keeps freed memory for a moment.

Row groups come and go many times a second, and fresh pages of memory cost more than decoding into them.
"""

from __future__ import annotations

import os


def keep_freed_memory() -> None:
    """Let Arrow allocate from jemalloc, which gives memory back about a second after it was freed.

    Arrow's usual allocator gives large blocks back at once. Nothing changes where an allocator was chosen, by
    `ARROW_DEFAULT_MEMORY_POOL` or `pyarrow.set_memory_pool`, or where Arrow is built without jemalloc.
    """
    import pyarrow as pa

    chosen = "ARROW_DEFAULT_MEMORY_POOL" in os.environ or pa.default_memory_pool().backend_name != "mimalloc"
    if chosen or "jemalloc" not in pa.supported_memory_backends():
        return
    pa.set_memory_pool(pa.jemalloc_memory_pool())
    pa.allocate_buffer(1)  # where its first block is a large one, made by a thread, it was seen to keep nothing
