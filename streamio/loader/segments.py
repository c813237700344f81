"""Shared memory between a worker and the loader: segments that the worker fills, and gets back when they are let go.

Memory files without a name: they are gone with the processes, however these end.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from typing import Any

import numpy as np

#: A segment has a multiple of these bytes, so that batches of about one size fit the same ones.
GRAIN = 1 << 18

#: Segments of one worker that may be in use; beyond them batches are copied through the socket.
MOST = 64

#: Whether this system has memory files.
AVAILABLE = hasattr(os, "memfd_create")


class Segments:
    """The worker's side: where the next message goes."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._back: deque[int] = deque()
        self._made = 0

    def give_back(self, numbers: list[int]) -> None:
        """The loader has let go of these. May be called from another thread."""
        self._back.extend(numbers)

    def take(self, size: int) -> tuple[int, memoryview, int | None, list[int]] | None:
        """A segment of at least `size` bytes; None where too many are in use.

        Returns:
            Its number, its memory, its file where it is new (to be sent and closed), and the numbers of segments that
            are of no use any more.
        """
        while self._back:
            self._free.append(self._back.popleft())
        fitting = [number for number in self._free if len(self._maps[number]) >= size]
        if fitting:
            number = min(fitting, key=lambda one: len(self._maps[one]))
            self._free.remove(number)
            return number, memoryview(self._maps[number]), None, []
        outgrown, self._free = self._free, []
        for number in outgrown:
            del self._maps[number]
        if len(self._maps) >= MOST or not AVAILABLE:
            return None
        number, self._made = self._made, self._made + 1
        length = -(-size // GRAIN) * GRAIN
        file = os.memfd_create("streamio", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, length)
            self._maps[number] = mmap.mmap(file, length)
        except BaseException:
            os.close(file)
            raise
        return number, memoryview(self._maps[number]), file, outgrown


class Mapped:
    """The loader's side: segments by number, and those that nobody uses any more."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}
        self._let_go: deque[int] = deque()

    def add(self, number: int, file: int) -> None:
        """Map a new segment; its file is closed."""
        try:
            self._maps[number] = mmap.mmap(file, os.fstat(file).st_size)
        finally:
            os.close(file)

    def forget(self, numbers: list[int]) -> None:
        """The worker uses these no more; their memory goes when nothing here does either."""
        for number in numbers:
            self._maps.pop(number, None)

    def lease(self, number: int, size: int) -> memoryview:
        """The memory of a message. The segment goes back to the worker once nothing refers to it."""
        array: np.ndarray[Any, Any] = np.frombuffer(self._maps[number], np.uint8, size)
        weakref.finalize(array, self._let_go.append, number).atexit = False
        return array.data

    def let_go(self) -> list[int]:
        """Segments that came free since the last call."""
        numbers = []
        while self._let_go:
            numbers.append(self._let_go.popleft())
        return numbers
