"""An HTTP proxy before a server on this machine that breaks answers as rules tell, and records the requests.

It knows keep-alive and chunked bodies, and passes the Host header of signed requests on, so that signatures stay
valid; it knows nothing of TLS, and is for faults, not for measuring speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.servers.buckets import serve
from tests.servers.wire import Head, read_body, read_head

START_SECONDS = 10.0
SETTLE_SECONDS = 0.05  # between the last bytes and a reset, so that they reach the client first
CODES = {403: "AccessDenied", 404: "NoSuchKey", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}


@dataclass(frozen=True)
class Fault:
    """What is done to one exchange; made by the functions below, and without fields a plain pass."""

    answer: tuple[int, str] | None = None
    close: bool = False
    hook: Callable[[], object] | None = None
    drop_range: bool = False
    stop_at: int | None = None
    reset: bool = False
    short: int | None = None
    honest: bool = False
    stall_at: int | None = None
    stall_seconds: float = 0.0


def passed() -> Fault:
    """Nothing is broken: `Rule(passed(), times=2)` before another rule spares the first two requests."""
    return Fault()


def status(number: int, code: str | None = None) -> Fault:
    """Answer with this status and an S3 error document, without asking the server."""
    return Fault(answer=(number, code or CODES.get(number, "Error")))


def close() -> Fault:
    """Close the connection without an answer."""
    return Fault(close=True)


def reset_after(size: int) -> Fault:
    """Send `size` bytes of the body, then reset the connection (RST)."""
    return Fault(stop_at=size, reset=True)


def cut_after(size: int) -> Fault:
    """Send `size` bytes of the body, then close in order (FIN), though Content-Length promised more."""
    return Fault(stop_at=size)


def short(size: int, *, honest: bool = False) -> Fault:
    """Answer with the first `size` bytes and a Content-Length that says so.

    The Content-Range still claims what was asked for (read clients take that for the whole), unless `honest`.
    """
    return Fault(short=size, honest=honest)


def stall(seconds: float, after: int | None = None) -> Fault:
    """Wait, before the request is passed on or after `after` bytes of the body, then go on."""
    return Fault(stall_at=after, stall_seconds=seconds)


def ignore_range() -> Fault:
    """Answer a ranged GET with 200 and the whole object."""
    return Fault(drop_range=True)


def replace_once(hook: Callable[[], object]) -> Fault:
    """Call `hook` before the request is passed on, in another thread (say, to overwrite the object)."""
    return Fault(hook=hook)


@dataclass
class Rule:
    """Breaks the next `times` requests that match; None: all of them.

    Attributes:
        fault: What to do.
        method: Regular expression for the whole method.
        path: Regular expression that is searched for in the target (path and query, quoted as sent).
        range: Regular expression that is searched for in the Range header; None: with or without one.
        times: How many more requests it applies to.
    """

    fault: Fault
    method: str = "GET"
    path: str = ""
    range: str | None = None
    times: int | None = 1

    def takes(self, request: Request) -> bool:
        """Whether it applies to this request; if so, one of `times` is used up."""
        ranged = self.range is None or (request.range is not None and re.search(self.range, request.range))
        fits = re.fullmatch(self.method, request.method) and re.search(self.path, request.path) and ranged
        if not fits or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass
class Request:
    """A request and what became of it: `status` (None without an answer) and `sent` bytes of its body."""

    method: str
    path: str
    headers: dict[str, str] = field(repr=False)
    status: int | None = None
    sent: int = 0
    faulted: bool = False

    @property
    def range(self) -> str | None:
        """The Range header, like `bytes=0-99`."""
        return self.headers.get("range")

    @property
    def if_match(self) -> str | None:
        """The If-Match header."""
        return self.headers.get("if-match")


class FaultProxy:
    """A proxy in a thread of its own, from the start to the end of a `with` block.

    Attributes:
        endpoint: Where clients go in place of the server.
        requests: What was asked, in order.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._started = threading.Event()
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._delay = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        self.endpoint = ""
        self.requests: list[Request] = []

    def add(self, *rules: Rule) -> None:
        """Add rules; for each request the first one that takes it is followed."""
        with self._lock:
            self._rules += rules

    def clear(self) -> None:
        """Forget the rules, the delay and the requests recorded so far."""
        with self._lock:
            self._rules.clear()
            self._delay = 0.0
            self.requests.clear()

    def delay(self, seconds: float) -> None:
        """From now on let each request wait this long before it is passed on."""
        self._delay = seconds

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        if not self._started.wait(START_SECONDS) or not self.endpoint:
            raise RuntimeError(f"the fault proxy did not start: {self._errors}")
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)
        if self._thread.is_alive():
            raise RuntimeError("the fault proxy did not end")
        if self._errors:
            raise RuntimeError("the fault proxy itself failed") from self._errors[0]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._started.set()
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writer.transport.set_write_buffer_limits(0)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client left
        except asyncio.CancelledError:
            pass  # the proxy ends
        except Exception as error:
            self._errors.append(error)
        finally:
            _end(writer)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection stays open."""
        head = await read_head(reader)
        if head is None:
            return False
        method, target, _ = head.first.split(" ", 2)
        if head.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b"".join([block.raw async for block in read_body(reader, head)])
        request = Request(method, target, {name.lower(): value for name, value in head.fields})
        with self._lock:
            self.requests.append(request)
            fault = next((rule.fault for rule in self._rules if rule.takes(request)), None)
        request.faulted, fault = fault is not None, fault or Fault()
        await asyncio.sleep(self._delay + (fault.stall_seconds if fault.stall_at is None else 0))
        if fault.close:
            return False
        if fault.hook is not None:
            await asyncio.to_thread(fault.hook)
        if fault.answer is not None:
            return await _refuse(writer, request, *fault.answer)
        upstream, forward = await asyncio.open_connection(*self._upstream)
        try:
            forward.write(
                _forwarded(head, host=f"{self._upstream[0]}:{self._upstream[1]}", drop_range=fault.drop_range) + body
            )
            await forward.drain()
            answer = await read_head(upstream)
            while answer is not None and answer.status < 200:
                answer = await read_head(upstream)
            if answer is None:
                raise ConnectionError("the server closed without an answer")
            kept = await _relay(upstream, writer, answer, request, fault)
        finally:
            _end(forward)
        return kept and head.get("connection", "").lower() != "close"


def _forwarded(head: Head, *, host: str, drop_range: bool) -> bytes:
    sent = head.without("connection", "expect", "keep-alive")
    if not head.get("authorization").startswith("AWS4"):
        sent = sent.with_field("Host", host)  # fake-gcs-server knows its buckets by it
    if drop_range:
        sent = sent.without("range")
        if head.get("authorization").startswith("AWS4"):  # most clients sign the Range header, so sign anew
            amz = [name.lower() for name, _ in sent.fields if name.lower().startswith("x-amz-")]
            method, target, _ = head.first.split(" ", 2)
            path, _, query = target.partition("?")
            query = "&".join(sorted(query.split("&")))
            sent = sent.without("authorization", *amz)
            for name, value in serve.sign(method, head.get("host"), path, query, b"").items():
                sent = sent.with_field(name, value)
    return sent.with_field("Connection", "close").encode()


async def _relay(
    upstream: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Head,
    request: Request,
    fault: Fault,
) -> bool:
    """Pass an answer on, broken as told; whether the connection can be used again."""
    head = answer.without("connection", "keep-alive")
    bodiless = request.method == "HEAD" or answer.status in (204, 304)
    framed = bodiless or bool(answer.get("content-length") or answer.get("transfer-encoding"))
    if fault.short is not None:
        head = _shortened(head, fault.short, honest=fault.honest)
    elif not framed:
        head = head.with_field("Connection", "close")
    request.status = answer.status
    writer.write(head.encode())
    await writer.drain()
    if bodiless:
        return True
    limit = fault.stop_at if fault.short is None else fault.short
    async for block in read_body(upstream, answer, until_closed=True):
        raw, start, size = block.raw, block.start, block.size
        if fault.short is not None:
            raw, start = raw[start : start + size], 0
        if fault.stall_at is not None and request.sent <= fault.stall_at < request.sent + size:
            early = fault.stall_at - request.sent
            await _send(writer, raw[: start + early])
            raw, start, size, request.sent = raw[start + early :], 0, size - early, fault.stall_at
            await asyncio.sleep(fault.stall_seconds)
        if limit is not None and request.sent + size >= limit:
            await _send(writer, raw[: start + limit - request.sent])
            request.sent = limit
            if fault.short is None:
                await asyncio.sleep(SETTLE_SECONDS)
                if fault.reset:
                    _reset(writer)
            return fault.short is not None
        await _send(writer, raw)
        request.sent += size
    return framed


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, request: Request, number: int, code: str) -> bool:
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>told so</Message></Error>'
    head = f"HTTP/1.1 {number} Told\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n"
    request.status = number
    body = "" if request.method == "HEAD" else text
    request.sent = len(body)
    await _send(writer, (head + body).encode())
    return True


def _shortened(head: Head, size: int, *, honest: bool) -> Head:
    length = min(size, int(head.get("content-length") or size))
    ranged = re.fullmatch(r"bytes (\d+)-\d+/(.+)", head.get("content-range"))
    if ranged and honest:
        first = int(ranged[1])
        head = head.with_field("Content-Range", f"bytes {first}-{first + length - 1}/{ranged[2]}")
    return head.without("transfer-encoding").with_field("Content-Length", str(length))


def _end(writer: asyncio.StreamWriter) -> None:
    # A process forked meanwhile holds the socket too: only a shutdown tells the other side of the end.
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if sys.platform == "linux":
        # Resets at once, even where a forked process holds the socket too; elsewhere the close does it.
        ctypes.CDLL(None).connect(sock.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16)
    writer.transport.abort()
