"""Messages over one socket between the loader and one worker; large ones lie in shared memory beside it.

The parent never blocks in the middle of a message: it takes what is there and looks again, so a worker that is
killed or stopped half-way through a write can't hold it.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections import deque
from typing import Any

from streamio.loader.packing import Packed, aligned, unpacked
from streamio.loader.segments import Mapped, Segments

#: Messages of fewer bytes go through the socket.
INLINE = 32 << 10

_LENGTH = struct.Struct("!Q")
_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_FILES = socket.CMSG_SPACE(16 * struct.calcsize("i"))


def send(sock: socket.socket, message: Any, segments: Segments | None = None, *, by_value: bool = False) -> None:
    """Send a message whole; blocks while the other side does not read.

    Args:
        sock: Where to.
        message: Anything that can be pickled.
        segments: Shared memory for large messages; None sends all through the socket.
        by_value: See `Packed`.
    """
    packed = Packed(message, by_value=by_value)
    size = sum(map(aligned, packed.sizes))
    taken = segments.take(size) if segments is not None and size >= INLINE else None
    if taken is None:
        data = bytearray(size)
        packed.write(memoryview(data))
        _send(sock, (packed.sizes, None, data, False, []))
        return
    number, memory, file, outgrown = taken
    try:
        packed.write(memory)
        _send(sock, (packed.sizes, number, None, file is not None, outgrown), file)
    finally:
        if file is not None:
            os.close(file)


def receive(sock: socket.socket) -> Any:
    """Wait for one message that was sent without segments.

    Raises:
        EOFError: The other side is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    sizes, _, data, _, _ = pickle.loads(_exactly(sock, length))  # noqa: S301 - our own parent's bytes
    return unpacked(memoryview(data), sizes)


def _send(sock: socket.socket, envelope: Any, file: int | None = None) -> None:
    data = pickle.dumps(envelope, pickle.HIGHEST_PROTOCOL)
    length = _LENGTH.pack(len(data))
    if file is None:
        sock.sendall(length)
    else:
        sent = socket.send_fds(sock, [length], [file])
        sock.sendall(length[sent:])
    sock.sendall(data)


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
        sock: The parent's end.

    Attributes:
        closed: Whether the other side is gone.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._mapped = Mapped()
        self._messages: deque[bytearray] = deque()
        self._files: deque[int] = deque()
        self._data = bytearray(_LENGTH.size)
        self._filled = 0
        self._in_header = True
        self.closed = False

    def read(self) -> None:
        """Take what has arrived; sets `closed` at the end of the stream."""
        while not self.closed:
            room = memoryview(self._data)[self._filled :]
            try:
                got, told, _, _ = self._sock.recvmsg_into([room], _FILES, _FLAGS)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                got, told = 0, []
            for level, kind, data in told:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self._files.extend(number for (number,) in struct.iter_unpack("i", data))
            if not got:
                self.closed = True
                return
            self._filled += got
            if self._filled == len(self._data):
                self._complete()

    def take(self) -> Any | None:
        """The next whole message, None where there is none yet."""
        if not self._messages:
            return None
        envelope = pickle.loads(self._messages.popleft())  # noqa: S301 - our own worker's bytes
        sizes, number, data, new, outgrown = envelope
        self._mapped.forget(outgrown)
        if number is None:
            return unpacked(memoryview(data), sizes)
        if new:
            self._mapped.add(number, self._files.popleft())
        return unpacked(self._mapped.lease(number, sum(map(aligned, sizes))), sizes)

    def let_go(self) -> list[int]:
        """Segments that can be used again, to be told to the worker."""
        return self._mapped.let_go()

    def close(self) -> None:
        """Close files that came with messages nobody took."""
        while self._files:
            os.close(self._files.popleft())

    def _complete(self) -> None:
        if self._in_header:
            (length,) = _LENGTH.unpack(self._data)
            self._data = bytearray(length)
        else:
            self._messages.append(self._data)
            self._data = bytearray(_LENGTH.size)
        self._in_header = not self._in_header
        self._filled = 0
