"""Messages over one socket between the loader and one worker.

The parent never blocks in the middle of a message: it takes what is there and looks again, so a worker that is
killed or
stopped half-way through a write can't hold it.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections import deque
from multiprocessing.reduction import ForkingPickler
from typing import Any

_LENGTH = struct.Struct("!Q")
_PROTOCOL = 5


def dumps(message: Any, *, by_value: bool = False) -> bytes:
    """A message as bytes; tensors in it go through torch's shared memory unless `by_value`."""
    if by_value:
        return pickle.dumps(message, _PROTOCOL)
    buffer = io.BytesIO()
    ForkingPickler(buffer, _PROTOCOL).dump(message)
    return buffer.getvalue()


def send(sock: socket.socket, message: Any, *, by_value: bool = False) -> None:
    """Send a message whole; blocks while the other side does not read."""
    data = dumps(message, by_value=by_value)
    sock.sendall(_LENGTH.pack(len(data)))
    sock.sendall(data)


def receive(sock: socket.socket) -> Any:
    """Wait for one message.

    Raises:
        EOFError: The other side is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return ForkingPickler.loads(_exactly(sock, length))


def _exactly(sock: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data


class Inbox:
    """Gathers messages from a socket without blocking.

    Args:
        sock: The parent's end; it is made non-blocking for reads.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._messages: deque[bytearray] = deque()
        self._data = bytearray(_LENGTH.size)
        self._filled = 0
        self._in_header = True
        self.closed = False

    def read(self) -> None:
        """Take what has arrived; sets `closed` at the end of the stream."""
        while not self.closed:
            try:
                got = self._sock.recv_into(memoryview(self._data)[self._filled :], 0, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                got = 0
            if not got:
                self.closed = True
                return
            self._filled += got
            if self._filled == len(self._data):
                self._complete()

    def take(self) -> Any | None:
        """The next whole message, None where there is none yet."""
        return ForkingPickler.loads(self._messages.popleft()) if self._messages else None

    def _complete(self) -> None:
        if self._in_header:
            (length,) = _LENGTH.unpack(self._data)
            self._data = bytearray(length)
        else:
            self._messages.append(self._data)
            self._data = bytearray(_LENGTH.size)
        self._in_header = not self._in_header
        self._filled = 0
