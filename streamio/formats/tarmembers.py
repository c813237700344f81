"""Finds the members of a tar archive in a stream of bytes, without seeking.

Headers are read one by one, as `tarfile`'s own stream mode takes a damaged one for the end of the archive. What
members mean together is the format's business (`streamio.formats.tar`).
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import NamedTuple
from zlib import adler32

from streamio.formats.base import CorruptError
from streamio.formats.bytestream import ByteStream

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_WITHOUT_DATA = (
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.DIRTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
)
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_DIGITS = 19  # more has no size: Python refuses numbers of thousands of them
_NOTHING: dict[str, str] = {}

# A header as nearly all programs write it, from the mode to the device numbers: plain octal, an ordinary type.
_PLAIN = re.compile(
    rb"(?:[0-7]{6}[0-7 ]\0){3}([0-7]{11})[\0 ][0-7]{11}[\0 ]([0-7]{6})\0 ([0xgL]).{100}ustar(?:\x0000|  \0).{64}"
    rb"(?:\0{16}|(?:[0-7]{6}[0-7 ]\0){2})",
    re.DOTALL,
)
_MODE, _CHECKSUM, _TYPE, _PREFIX, _PREFIX_END = 100, 148, 156, 345, 500


class Member(NamedTuple):
    """A file or link.

    Attributes:
        begin: Where the first of its headers begins; -1 where it can't be read from there, as a global PAX header
            before it holds for it too.
        path: Its name.
        data: What it holds.
        problem: Why it can't be used; "" where it can.
    """

    begin: int
    path: str
    data: bytes
    problem: str


def members(stream: ByteStream) -> Iterator[Member]:
    """Files and links in order. Zeros may stand between them, as archives may be joined with `cat`.

    Raises:
        CorruptError: A header is damaged, or the archive is cut short.
    """
    everywhere: dict[str, str] = {}  # global PAX records that matter
    following: dict[str, str] = {}  # PAX records and long name of the next member
    begin = -1  # where its first header stands
    zeros = -1  # blocks of them since the last member; the start of a file needs none
    while block := stream.up_to(_BLOCK):
        at = stream.position - len(block)
        if block == _ZEROS[: len(block)]:
            if begin >= 0:
                raise CorruptError("the member of a PAX header or long name is missing", f"byte {at}")
            zeros = max(zeros, 0) + 1
            continue
        if zeros == 1:  # an end has two: here a header was wiped out
            raise CorruptError("a lone block of zeros stands between members", f"byte {at - _BLOCK}")
        zeros = 0
        kind, size, path = _header(block, at)
        if begin < 0:
            begin = at
        if kind in _PAX:
            following = {**_pax(stream, size, at), **following}  # of several the first holds
            continue
        if kind == tarfile.XGLTYPE:
            everywhere.update(_global(_pax(stream, size, at), at))
            continue
        if kind == tarfile.GNUTYPE_LONGNAME:
            name = _data(stream, size, "a long name").split(b"\0", 1)[0]
            following.setdefault("path", name.decode("utf-8", "surrogateescape"))
            continue
        if kind == tarfile.GNUTYPE_LONGLINK:
            _skip(stream, size, "a long name")
            continue
        pax = {**everywhere, **following} if everywhere or following else _NOTHING
        place = -1 if everywhere else begin
        begin, following = -1, {}
        if kind in _WITHOUT_DATA:
            size = 0
        elif pax:
            size = _size(pax.get("size"), size, at)
        path = pax.get("GNU.sparse.name") or pax.get("path") or path if pax else path
        what = f"the tar member {path!r}"
        sparse = kind == tarfile.GNUTYPE_SPARSE
        if sparse:
            extended = block[482]
            while extended:
                extended = stream.exactly(_BLOCK, what)[504]
        if sparse or (pax and any(key.startswith("GNU.sparse.") for key in pax)):
            _skip(stream, size, what)
            yield Member(place, path, b"", f"the member {path!r} is a sparse file: write the archive without --sparse")
        elif kind in _REGULAR:
            yield Member(place, path, _data(stream, size, what), "")
        elif kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            yield Member(place, path, b"", f"the member {path!r} is a link: write the archive with --dereference")
        else:
            _skip(stream, size, what)  # folders, devices, and what only some programs know
    if not zeros:
        raise CorruptError("the archive is cut short: it has no end marker", f"byte {stream.position}")


def _header(block: bytes, at: int) -> tuple[bytes, int, str]:
    """A member's type, size and name, as `tarfile` reads them from one block."""
    if len(block) < _BLOCK:
        raise CorruptError("a tar header is cut short: the file ends", f"byte {at}")
    plain = _PLAIN.match(block, _MODE) if block.isascii() else None
    if plain is not None:
        size, checksum, kind = plain.groups()
        # Adler's lower half is 1 + the sum of 512 ASCII bytes; the checksum's own field counts as eight spaces.
        if (adler32(block) & 0xFFFF) - 1 - sum(block[_CHECKSUM:_TYPE]) + 256 == int(checksum, 8):
            name = block[:_MODE].partition(b"\0")[0]
            if block[_PREFIX]:
                name = block[_PREFIX:_PREFIX_END].partition(b"\0")[0] + b"/" + name
            return kind, int(size, 8), name.decode("utf-8", "surrogateescape")
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise CorruptError(f"a tar header is damaged: {error}", f"byte {at}") from error
    if info.size < 0:
        raise CorruptError("a tar header is damaged: it has a negative size", f"byte {at}")
    return info.type, info.size, info.name


def _global(records: dict[str, str], at: int) -> dict[str, str]:
    """Those records of a global PAX header that say something of members' names and data."""
    if "size" in records:  # programs do not agree on what it means
        raise CorruptError("a global PAX header sets a size for all members", f"byte {at}")
    return {key: value for key, value in records.items() if key == "path" or key.startswith("GNU.sparse.")}


def _size(pax: str | None, plain: int, at: int) -> int:
    if pax is None:
        return plain
    if not pax.isascii() or not pax.isdigit() or len(pax.lstrip("0")) > _DIGITS:
        raise CorruptError(f"a PAX header is damaged: its size is {pax[:40]!r}", f"byte {at}")
    return int(pax.lstrip("0") or "0")


def _data(stream: ByteStream, size: int, what: str) -> bytes:
    data = stream.exactly(size, what)
    if padding := -size % _BLOCK:
        stream.skip(padding, what)
    return data


def _skip(stream: ByteStream, size: int, what: str) -> None:
    stream.skip(size + -size % _BLOCK, what)


def _pax(stream: ByteStream, size: int, at: int) -> dict[str, str]:
    r"""Records of a PAX header: `LENGTH KEY=VALUE\n`, the length being that of the whole record in bytes."""
    data = stream.exactly(size + -size % _BLOCK, "a PAX header")
    records = {}
    rest = data[: size + 1].rstrip(b"\0")  # with a byte of the padding: newer `tarfile`s refuse what is none
    while rest:
        digits, space, _ = rest[:20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = rest[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not equals or not key or length > len(rest) or not record.endswith(b"\n"):
            raise CorruptError("a PAX header is damaged", f"byte {at}")
        records[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
        rest = rest[length:]
    if "path" in records:
        records["path"] = records["path"].rstrip("/")
    return records
