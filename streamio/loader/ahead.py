"""Runs an iterator in a thread of its own, as far ahead of its consumer as a number of bytes goes.

What it yields, and what it weighs, is the iterator's business; order and exceptions come through unchanged.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from streamio.iterators import end

T = TypeVar("T")

#: Seconds of waiting for room that are a moment: a consumer that does nothing else takes the next item within them.
PATIENCE = 0.005


class Ahead(Iterator[T], Generic[T]):
    """The items of an iterator, made ahead; one item is always let through, however heavy.

    Args:
        items: Makes the items; used, and closed, in the thread alone.
        weigh: Bytes that an item counts with.
        limit: Bytes of items that may wait.
        name: Name of the thread.
        meanwhile: Applied to an item that has to wait for room for more than a moment: the consumer is busy with
            something else then, and not with what this would take off it.
    """

    def __init__(
        self,
        items: Iterator[T],
        weigh: Callable[[T], int],
        limit: int,
        name: str,
        meanwhile: Callable[[T], T] | None = None,
    ) -> None:
        self._items = items
        self._weigh = weigh
        self._meanwhile = meanwhile
        self._limit = limit
        self._ready: queue.SimpleQueue[tuple[list[T], int] | BaseException] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._waiting = 0
        self._stopped = False
        self._end: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __next__(self) -> T:
        """The next item; raises what the iterator raised, again and again.

        It waits for as long as the iterator takes, whose own waits have deadlines.
        """
        if self._end is not None:
            raise self._end
        while True:
            try:
                entry = self._ready.get(timeout=1.0)  # in slices, so that Ctrl-C is heard everywhere
                break
            except queue.Empty:
                continue
        if isinstance(entry, BaseException):
            self._end = entry
            raise entry
        (item,), weight = entry
        with self._room:
            self._waiting -= weight
            self._room.notify()
        return item

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        with self._room:
            self._stopped = True
            self._room.notify()

    def close(self, deadline: float = 2.0) -> None:
        """End the thread, waiting for `deadline` seconds at most; the items that wait are let go."""
        self.stop()
        self._end = self._end or StopIteration()
        if self._thread is not threading.current_thread():  # where the garbage collector lets go of it there
            self._thread.join(deadline)
        while not self._ready.empty():
            self._ready.get_nowait()

    def _run(self) -> None:
        try:
            for item in self._items:
                weight = self._weigh(item)
                if self._meanwhile is not None and not self._fits_soon(weight):
                    item = self._meanwhile(item)
                if not self._admitted(weight):
                    break
                self._ready.put(([item], weight))
                del item  # a waiting thread must not keep what the consumer has let go of
        except BaseException as error:  # noqa: BLE001 - raised where the items are wanted
            self._ready.put(error)
        else:
            self._ready.put(StopIteration())
        finally:
            end(self._items)

    def _fits_soon(self, weight: int) -> bool:
        """Whether there is room, now or in a moment; if not, the consumer has other things to do."""
        with self._room:
            if not self._fits(weight) and not self._stopped:
                self._room.wait(PATIENCE)
            return self._fits(weight)

    def _admitted(self, weight: int) -> bool:
        """Wait until an item fits; False where nobody wants it any more."""
        with self._room:
            while not self._fits(weight) and not self._stopped:
                self._room.wait()
            self._waiting += weight
            return not self._stopped

    def _fits(self, weight: int) -> bool:
        return not self._waiting or self._waiting + weight <= self._limit
