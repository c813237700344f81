"""HTTP/1.1 messages as they stand on the wire: heads, and bodies in blocks. What faults.py needs, no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

BLOCK = 64 * 1024


@dataclass(frozen=True)
class Head:
    """First line and header fields of a message."""

    first: str
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.fields if key.lower() == name), default)

    def without(self, *names: str) -> Head:
        return replace(self, fields=tuple(pair for pair in self.fields if pair[0].lower() not in names))

    def with_field(self, name: str, value: str) -> Head:
        return replace(self, fields=(*self.without(name.lower()).fields, (name, value)))

    @property
    def status(self) -> int:
        return int(self.first.split(" ")[1])

    def encode(self) -> bytes:
        lines = [self.first, *(f"{name}: {value}" for name, value in self.fields)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclass(frozen=True)
class Block:
    """A piece of a body; `size` bytes of `raw` from `start` on are payload, the rest is chunk framing."""

    raw: bytes
    start: int
    size: int


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None where the connection ended before it."""
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = text[:-4].split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Head(first, tuple((name.strip(), value.strip()) for name, _, value in pairs))


async def read_body(reader: asyncio.StreamReader, head: Head, *, until_closed: bool = False) -> AsyncIterator[Block]:
    """The body as it comes; with neither length nor chunks told it is empty, or ends with the connection."""
    if "chunked" in head.get("transfer-encoding").lower():
        size = None
        while size != 0:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            if size:
                yield Block(line + await reader.readexactly(size + 2), len(line), size)
        while not line.endswith(b"\n\r\n"):  # trailing fields, or the empty line alone
            line += await reader.readuntil(b"\r\n")
        yield Block(line, 0, 0)
    elif head.get("content-length"):
        left = int(head.get("content-length"))
        while left:
            data = await reader.read(min(left, BLOCK))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(data)
            yield Block(data, 0, len(data))
    elif until_closed:
        while data := await reader.read(BLOCK):
            yield Block(data, 0, len(data))
