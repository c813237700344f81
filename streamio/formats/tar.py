"""Tar in the WebDataset layout: consecutive members that share a name up to its first dot are one sample.

How members are found in an archive is in `tarmembers`. Nothing is written to disk, and nothing is decoded but by
functions that the user gives.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamio.errors import DropRecord
from streamio.formats.base import Bad, Block, CorruptError, Record, Source
from streamio.formats.bytestream import ByteStream
from streamio.formats.compression import uncompressed
from streamio.formats.names import codec_of, with_codecs
from streamio.formats.rows import Records
from streamio.formats.tarmembers import Member, members

_MEMBER_OVERHEAD = 128  # bytes that a member takes in memory beside its data
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Tar:
    """Tar files of samples (`.tar`; also `.tar.gz`, `.tgz`, `.tar.zst`, `.tar.bz2`, `.tbz2`, `.tar.xz`, `.txz`).

    A record is `{"__key__": key, extension: bytes, ...}`. The key is the member's path up to the first dot of
    its last segment, the extension what follows that dot, in lower case. `__index__` counts the samples of
    the shard from 0.

    Args:
        decode: Functions from bytes to a value, by extension (`{"json": json.loads, "cls": int}`). One for
            `png` also serves `seg.png`, unless that has its own. None leaves all members as bytes.
    """

    decode: Mapping[str, Callable[[bytes], Any]] | None = None

    name = "tar"
    suffixes = (*with_codecs([".tar"]), ".tgz", ".tbz2", ".txz")

    def cuttable(self, url: str) -> bool:
        """No: samples are found from the start."""
        return False

    def blocks(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Generator[Block, None, None]:
        """The samples of the shard, in order.

        Args:
            source: The shard.
            start: 0.
            stop: The shard's size.
            first: Samples before `begin`.
            begin: Where a sample's first header stands from which to go on; in a plain archive only.

        Yields:
            Blocks of some 1 MiB; a sample that can't be used as `Bad("tar", ...)` (two members of one extension,
            a link, a sparse file) or `Bad("decode", ...)`.

        Raises:
            CorruptError: A header is damaged, or the archive is cut short. A sample that was begun is not
                yielded, as members of it may be missing.
        """
        decode = {extension.lower().lstrip("."): function for extension, function in (self.decode or {}).items()}
        seekable = codec_of(source.url) is None
        with closing(uncompressed(source, begin or 0)) as chunks:
            found = members(ByteStream(chunks, begin or 0))
            yield from _blocks(found, first, decode, source.size if seekable else None)


class _Gathered:
    """The samples of a block that is being made."""

    __slots__ = ("bad", "begins", "first", "nbytes", "total", "values")

    def __init__(self, first: int) -> None:
        self.first = first
        self.values: list[Record] = []
        self.bad: dict[int, Bad] = {}
        self.nbytes: list[int] = []
        self.begins: list[int] = []
        self.total = 0

    def block(self, end: int | None) -> Block:
        """The block; `end` is where what follows begins, -1 if that is not known, None if there is no going to any."""
        count = len(self.values)
        index = np.arange(self.first, self.first + count, dtype=np.int64)
        seek = None if end is None else np.array([*self.begins, end], np.int64)
        return Block(Records(self.values, self.bad), index, np.array(self.nbytes, np.int64), seek)


def _blocks(found: Iterator[Member], first: int, decode: Mapping[str, Any], size: int | None) -> Iterator[Block]:
    """Samples, some 1 MiB at a time; one that is larger is a block of its own.

    Args:
        found: The members.
        first: Number of the first sample.
        decode: Functions by extension.
        size: Length of the archive; None where reading can begin at its start only.
    """
    seekable = size is not None
    gathered = _Gathered(first)
    damage: CorruptError | None = None
    samples = _samples(found)
    while True:
        try:
            sample = next(samples, None)
        except CorruptError as error:
            damage, sample = error, None
        if sample is None:
            break
        record, nbytes, begin, problem = sample
        count = len(gathered.values)
        if count and (gathered.total + nbytes > _BLOCK_BYTES or (seekable and begin < 0)):
            yield gathered.block(begin if seekable else None)
            gathered = _Gathered(gathered.first + count)
            count = 0
        seekable = seekable and begin >= 0  # what a global header says holds for all behind it
        if problem or decode:
            bad = _decoded(record, gathered.first + count, decode, problem)
            if bad is not None:
                gathered.bad[count] = bad
        gathered.values.append(record)
        gathered.nbytes.append(nbytes)
        gathered.begins.append(begin)
        gathered.total += nbytes
    if gathered.values:
        end = size if damage is None else -1
        yield gathered.block(end if seekable else None)
    if damage is not None:
        raise damage


def _decoded(record: Record, index: int, decode: Mapping[str, Callable[[bytes], Any]], problem: str) -> Bad | None:
    """Decode a sample's members in place; what is wrong, if anything."""
    key = record["__key__"]
    if problem:
        return Bad("tar", f"sample {key!r}: {problem}", f"sample {index}")
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
    return None


def _samples(found: Iterator[Member]) -> Iterator[tuple[Record, int, int, str]]:
    """Each sample's record, size, first byte, and why it can't be used."""
    record: Record | None = None
    current = problem = ""
    nbytes = begin = 0
    for member_begin, path, data, member_problem in found:
        folder, slash, base = path.rpartition("/")
        stem, dot, extension = base.partition(".")
        if not stem or not dot or (folder and "__MACOSX" in folder.split("/")):
            continue
        key = folder + slash + stem
        if record is None or key != current:
            if record is not None:
                yield record, nbytes, begin, problem
            record = {"__key__": key}
            current, nbytes, begin, problem = key, 0, member_begin, ""
        nbytes += len(data) + _MEMBER_OVERHEAD
        extension = extension.lower()
        if member_problem:
            problem = problem or member_problem
        elif extension in record:
            problem = problem or f"several members have the extension {extension!r}"
        else:
            record[extension] = data
    if record is not None:
        yield record, nbytes, begin, problem
