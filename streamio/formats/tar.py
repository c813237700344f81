"""Tar in the WebDataset layout: consecutive members that share a name up to its first dot are one sample.

Headers are read one by one, as `tarfile`'s own stream mode takes a damaged one for the end of the archive.
Nothing is written to disk, and nothing is decoded but by functions that the user gives.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from streamio.errors import DropRecord
from streamio.formats.base import Bad, CorruptError, Record, Row, Source
from streamio.formats.bytestream import ByteStream
from streamio.formats.compression import uncompressed

_SUFFIXES: tuple[str, ...] = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_BLOCK = 512
_WITHOUT_DATA = (
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.DIRTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
)
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_DIGITS = 19  # more has no size: Python refuses numbers of thousands of them
_MEMBER_OVERHEAD = 128  # bytes that a member takes in memory beside its data


@dataclass(frozen=True, slots=True)
class Tar:
    """Tar files of samples (`.tar`, `.tar.gz`, `.tgz`, `.tar.zst`).

    A record is `{"__key__": key, extension: bytes, ...}`. The key is the member's path up to the first dot of
    its last segment, the extension what follows that dot, in lower case. `__index__` counts the samples of
    the shard from 0.

    Args:
        decode: Functions from bytes to a value, by extension (`{"json": json.loads, "cls": int}`). One for
            `png` also serves `seg.png`, unless that has its own. None leaves all members as bytes.
    """

    decode: Mapping[str, Callable[[bytes], Any]] | None = None

    name = "tar"
    suffixes = _SUFFIXES

    def cuttable(self, url: str) -> bool:
        """No: samples are found from the start."""
        return False

    def rows(self, source: Source, start: int, stop: int) -> Iterator[Row]:
        """The samples of the shard, in order.

        Args:
            source: The shard.
            start: 0.
            stop: The shard's size.

        Yields:
            One row a sample; one that can't be used as `Bad("tar", ...)` (two members of one extension, a
            link, a sparse file) or `Bad("decode", ...)`.

        Raises:
            CorruptError: A header is damaged, or the archive is cut short. A sample that was begun is not
                yielded, as members of it may be missing.
        """
        decode = {extension.lower().lstrip("."): function for extension, function in (self.decode or {}).items()}
        with closing(uncompressed(source)) as chunks:
            for index, sample in enumerate(_samples(ByteStream(chunks))):
                yield Row(index, sample.nbytes, _value(sample, index, decode))


@dataclass(slots=True)
class _Member:
    path: str
    data: bytes
    problem: str = ""


@dataclass(slots=True)
class _Sample:
    record: Record
    nbytes: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, extension: str, member: _Member) -> None:
        self.nbytes += len(member.data) + _MEMBER_OVERHEAD
        if member.problem:
            self.problems.append(member.problem)
        elif extension in self.record:
            self.problems.append(f"several members have the extension {extension!r}")
        else:
            self.record[extension] = member.data


def _value(sample: _Sample, index: int, decode: Mapping[str, Callable[[bytes], Any]]) -> Record | Bad:
    record = sample.record
    key = record["__key__"]
    if sample.problems:
        return Bad("tar", f"sample {key!r}: {sample.problems[0]}", f"sample {index}")
    if not decode:
        return record
    for extension, data in record.items():
        function = decode.get(extension) or decode.get(extension.rpartition(".")[2])
        if function is None or extension == "__key__":
            continue
        try:
            record[extension] = function(data)
        except DropRecord as request:
            return Bad(request.reason, f"sample {key!r}: {request.message}", f"sample {index}")
        except Exception as error:  # noqa: BLE001 - it is the user's function, and one record
            message = f"sample {key!r}: {extension!r}: {type(error).__name__}: {error}"
            return Bad("decode", message, f"sample {index}")
    return record


def _samples(stream: ByteStream) -> Iterator[_Sample]:
    sample: _Sample | None = None
    for member in _members(stream):
        folder, slash, base = member.path.rpartition("/")
        stem, dot, extension = base.partition(".")
        if not stem or not dot or "__MACOSX" in folder.split("/"):
            continue
        key = folder + slash + stem
        if sample is None or sample.record["__key__"] != key:
            if sample is not None:
                yield sample
            sample = _Sample({"__key__": key})
        sample.add(extension.lower(), member)
    if sample is not None:
        yield sample


def _members(stream: ByteStream) -> Iterator[_Member]:
    """Files and links in order. Zeros may stand between them, as archives may be joined with `cat`."""
    everywhere: dict[str, str] = {}  # global PAX records
    following: dict[str, str] = {}  # PAX records and long name of the next member
    zeros = -1  # blocks of them since the last member; the start of a file needs none
    while block := stream.up_to(_BLOCK):
        at = stream.position - len(block)
        if block.count(0) == len(block):
            if following:
                raise CorruptError("the member of a PAX header or long name is missing", f"byte {at}")
            zeros = max(zeros, 0) + 1
            continue
        if zeros == 1:  # an end has two: here a header was wiped out
            raise CorruptError("a lone block of zeros stands between members", f"byte {at - _BLOCK}")
        zeros = 0
        info = _header(block, at)
        what = f"the tar member {info.name!r}"
        if info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            following.update(_pax(_data(stream, info.size, "a PAX header"), at))
            continue
        if info.type == tarfile.XGLTYPE:
            everywhere.update(_pax(_data(stream, info.size, "a PAX header"), at))
            continue
        if info.type == tarfile.GNUTYPE_LONGNAME:
            name = _data(stream, info.size, "a long name").split(b"\0", 1)[0]
            following.setdefault("path", name.decode("utf-8", "surrogateescape"))
            continue
        pax = {**everywhere, **following}
        size = 0 if info.type in _WITHOUT_DATA else _size(pax.get("size"), info.size, at)
        path = pax.get("GNU.sparse.name") or pax.get("path") or info.name
        if info.type == tarfile.GNUTYPE_LONGLINK:
            _skip(stream, info.size, "a long name")
            continue
        following = {}
        if info.type == tarfile.GNUTYPE_SPARSE:
            extended = block[482]
            while extended:
                extended = stream.exactly(_BLOCK, what)[504]
        if info.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse.") for key in pax):
            _skip(stream, size, what)
            yield _Member(path, b"", f"the member {path!r} is a sparse file: write the archive without --sparse")
        elif info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            yield _Member(path, b"", f"the member {path!r} is a link: write the archive with --dereference")
        elif info.type in _REGULAR:
            yield _Member(path, _data(stream, size, what))
        else:
            _skip(stream, size, what)  # folders, devices, and what only some programs know
    if not zeros:
        raise CorruptError("the archive is cut short: it has no end marker", f"byte {stream.position}")


def _header(block: bytes, at: int) -> tarfile.TarInfo:
    if len(block) < _BLOCK:
        raise CorruptError("a tar header is cut short: the file ends", f"byte {at}")
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise CorruptError(f"a tar header is damaged: {error}", f"byte {at}") from error
    if info.size < 0:
        raise CorruptError("a tar header is damaged: it has a negative size", f"byte {at}")
    return info


def _size(pax: str | None, plain: int, at: int) -> int:
    if pax is None:
        return plain
    if not pax.isascii() or not pax.isdigit() or len(pax.lstrip("0")) > _DIGITS:
        raise CorruptError(f"a PAX header is damaged: its size is {pax[:40]!r}", f"byte {at}")
    return int(pax.lstrip("0") or "0")


def _data(stream: ByteStream, size: int, what: str) -> bytes:
    data = stream.exactly(size, what)
    stream.skip(-size % _BLOCK, what)
    return data


def _skip(stream: ByteStream, size: int, what: str) -> None:
    stream.skip(size + -size % _BLOCK, what)


def _pax(data: bytes, at: int) -> dict[str, str]:
    r"""Records of a PAX header: `LENGTH KEY=VALUE\n`, the length being that of the whole record in bytes."""
    records = {}
    rest = data.rstrip(b"\0")
    while rest:
        digits, space, _ = rest[:20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = rest[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not equals or not key or length > len(rest) or not record.endswith(b"\n"):
            raise CorruptError("a PAX header is damaged", f"byte {at}")
        records[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
        rest = rest[length:]
    return records
