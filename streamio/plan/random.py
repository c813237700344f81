"""Randomness that is a function of its key alone: the same on every platform, run and numpy release.

numpy promises the raw stream of a bit generator for good, but not what its distributions make of it. So whatever
decides an order is made from raw bits here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def permutation(n: int, *key: int | str) -> NDArray[np.int64]:
    """A permutation of `range(n)` that depends on `n` and `key` alone, int64 of shape (n,)."""
    return np.argsort(_philox(key).random_raw(n), kind="stable").astype(np.int64, copy=False)


def generator(*key: int | str) -> np.random.Generator:
    """A generator for users' own randomness (augmentation), keyed the same way."""
    return np.random.Generator(_philox(key))


def _philox(key: tuple[int | str, ...]) -> np.random.Philox:
    """Philox keyed by the SHA-256 of the key's parts, each told apart by type and length."""
    digest = hashlib.sha256()
    for part in key:
        if type(part) not in (int, str):  # another type of one value would be another order
            raise TypeError(f"an order is keyed by int and str, not by {part!r} of {type(part).__name__}")
        text = f"{'i' if isinstance(part, int) else 's'}{part}"
        digest.update(f"{len(text)}:{text}".encode())
    return np.random.Philox(key=int.from_bytes(digest.digest()[:16], "little"))
