"""A network made in user space: an asyncio TCP proxy with delay and a limit on each connection, and counters.

python -m benchmarks.shaper http://127.0.0.1:PORT   prints its ports as JSON, and runs until SIGTERM.

Bytes take 10 ms in each direction, and a new connection another 20 ms, as a TCP handshake would; what flows to
the client is paced to 80 MB/s a connection by the kernel (SO_MAX_PACING_RATE). TCP's slow start and loss are not
imitated, and the proxy has a ceiling of its own, which the harness measures and shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
from collections import deque
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

DELAY = 0.010
"""Seconds that bytes take in each direction."""
HANDSHAKE = 0.020
"""Seconds before the first bytes of a new connection start on their way."""
RATE = 80_000_000
"""Bytes a second to the client on one connection."""
SO_MAX_PACING_RATE = 47
IN_FLIGHT = 4 << 20
"""Bytes of one direction that may be on their way; twice what 80 MB/s fill in 20 ms."""
CHUNK = 256 << 10
METHODS = (b"GET ", b"HEAD ", b"PUT ", b"POST ")


@dataclass
class Counters:
    """What went through: requests (heads at the start of a client's write), bytes to clients, connections."""

    requests: int = 0
    bytes: int = 0
    connections: int = 0


class End(asyncio.BufferedProtocol):
    """One end of a pair of connections: what arrives here leaves at `other`, later."""

    def __init__(self, counters: Counters, to_server: bool) -> None:
        self.counters = counters
        self.to_server = to_server
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.buffer = bytearray(CHUNK)
        self.waiting: deque[tuple[float, bytes]] = deque()  # arrived here, not yet sent by `other`
        self.held = 0
        self.blocked = self.ended = self.scheduled = False
        self.opened = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the socket; the pacing belongs to the end that sends to the client."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.opened = asyncio.get_running_loop().time()
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=IN_FLIGHT)
        if self.to_server:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, RATE)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next bytes are to go."""
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived: note when they are to leave, and hold the sender where too many are on their way."""
        data = bytes(memoryview(self.buffer)[:nbytes])
        now = asyncio.get_running_loop().time()
        if self.to_server:
            self.counters.requests += data.startswith(METHODS)
            now = max(now, self.opened + HANDSHAKE)
        else:
            self.counters.bytes += nbytes
        self.waiting.append((now + DELAY, data))
        self.held += nbytes
        self.throttle()
        self.schedule()

    def schedule(self) -> None:
        """Wake up when the oldest bytes are due."""
        if self.waiting and not self.scheduled and self.other is not None and not self.other.blocked:
            self.scheduled = True
            asyncio.get_running_loop().call_at(self.waiting[0][0], self.send)

    def send(self) -> None:
        """Pass on all that is due."""
        self.scheduled = False
        other = self.other
        if other is None or other.transport is None:
            return
        if other.transport.is_closing():  # nobody is there to take them
            self.waiting.clear()
            return
        now = asyncio.get_running_loop().time() + 0.0005  # timers are that coarse
        while self.waiting and self.waiting[0][0] <= now and not other.blocked:
            data = self.waiting.popleft()[1]
            self.held -= len(data)
            other.transport.write(data)
        self.throttle()
        if self.ended and not self.waiting:
            other.transport.close()
        self.schedule()

    def throttle(self) -> None:
        """Read on, or wait, by how much is on its way."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.held >= IN_FLIGHT:
            self.transport.pause_reading()
        elif not self.ended:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """The receiver is slower than the sender."""
        self.blocked = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self.blocked = False
        if self.other is not None:
            self.other.schedule()

    def eof_received(self) -> bool:
        """The sender is done: let what is on its way arrive, then close."""
        self.finish()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed or broken."""
        self.finish()

    def finish(self) -> None:
        """Close the other end once everything has left."""
        if not self.ended:
            self.ended = True
            if not self.waiting and self.other is not None and self.other.transport is not None:
                self.other.transport.close()


async def serve(host: str, port: int) -> None:
    """Run the proxy before `host`:`port`, and its control port, until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    counters = Counters()

    async def connect(near: End) -> None:
        try:
            _, far = await loop.create_connection(lambda: End(counters, to_server=False), host, port)
        except OSError:
            assert near.transport is not None
            near.transport.abort()
            return
        near.other, far.other = far, near
        near.schedule()
        if near.ended and not near.waiting and far.transport is not None:
            far.transport.close()

    tasks: set[asyncio.Task[None]] = set()

    def accept() -> End:
        near = End(counters, to_server=True)
        counters.connections += 1
        task = loop.create_task(connect(near))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return near

    def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps(asdict(counters)).encode() + b"\n")
        writer.close()

    data = await loop.create_server(accept, "127.0.0.1", 0, backlog=1024)
    control = await asyncio.start_server(tell, "127.0.0.1", 0)
    ports = {"port": data.sockets[0].getsockname()[1], "control": control.sockets[0].getsockname()[1]}
    print(json.dumps(ports), flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="A slow, paced network before a server on this machine.")
    parser.add_argument("endpoint", help="http://127.0.0.1:PORT of the server")
    target = urlsplit(parser.parse_args().endpoint)
    assert target.hostname is not None
    assert target.port is not None
    asyncio.run(serve(target.hostname, target.port))


if __name__ == "__main__":
    main()
