"""How bytes are read: one checked, picklable value that travels to every process that reads.

It does no I/O, and its repr does not show the storage options, which may hold credentials.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from streamio.storage.retry import Retry

MIB = 1 << 20

EngineName: TypeAlias = Literal["auto", "obstore", "fsspec"]


@dataclass(frozen=True)
class ReadSettings:
    """Settings of a `Reader`.

    Attributes:
        storage_options: fsspec's options for the data's filesystem; never shown.
        retry: When to try again.
        prefetch_bytes: Bytes that a process may hold or fetch before they are asked for; 128 MiB by default.
        part_bytes: About the length of one request: longer ranges are read as equal parts; 8 MiB by default.
        concurrency: Requests of one process in flight at most; 32 by default.
        stall_timeout: Seconds without a byte after which a request is tried again; 30 by default.
        engine: What reads: "obstore" (s3:// and gs:// alone, the fastest), "fsspec" (everything, and a process that
            may fork later stays clean of obstore), or "auto", the default: obstore wherever it can be told all of
            `storage_options`, else fsspec, said once at INFO.

    Raises:
        ValueError: A number is not positive, or no such engine.
    """

    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    retry: Retry = field(default_factory=Retry)
    prefetch_bytes: int = 128 * MIB
    part_bytes: int = 8 * MIB
    concurrency: int = 32
    stall_timeout: float = 30.0
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        for name in ("prefetch_bytes", "part_bytes", "concurrency", "stall_timeout"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name} must be a positive number, not {value!r}")
        if self.engine not in get_args(EngineName):
            raise ValueError(f'engine must be "auto", "obstore" or "fsspec", not {self.engine!r}')
