"""Ends iterators that hold something open, whether they are generators or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def end(iterator: Any) -> None:
    """Close an iterator, if it can be closed."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


@contextmanager
def ended(iterator: Iterator[T]) -> Iterator[Iterator[T]]:
    """End an iterator when the block is left, however that is."""
    try:
        yield iterator
    finally:
        end(iterator)
