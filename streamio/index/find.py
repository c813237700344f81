"""Finds the index of a data set and checks it against the listing, so that nothing wrong is ever read through it.

What is done without an index is `streamio.settle`'s part.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streamio.errors import AccessError, CredentialsError, DataNotFoundError, FormatError
from streamio.formats.base import FilteringFormat, IndexedFormat
from streamio.formats.counting import to_stream
from streamio.formats.seeking import Points, Seeking
from streamio.index.place import data_folder, default_url, folder_of
from streamio.index.table import IndexTable, options_text
from streamio.storage import objects
from streamio.storage.faults import shown
from streamio.storage.urls import normalise
from streamio.together import led

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.formats.base import Format, StreamedFormat
    from streamio.group import Group
    from streamio.storage.settings import ReadSettings
    from streamio.storage.shards import ShardList

logger = logging.getLogger(__name__)

#: `index=`: the default place, if there is one there.
AUTO = "auto"

_FOUND = b"+"
_SOME = 3  # shards that a message names


@dataclass(frozen=True)
class Known:
    """What an index tells of the listed shards.

    Attributes:
        format: What reads their splits.
        counts: Their counts, as `formats.counting.count_share` has them.
        unknown: Numbers of the shards that have to be counted without it.
        url: Where the index lies.
    """

    format: Format
    counts: bytes
    unknown: list[int]
    url: str


@dataclass(frozen=True)
class Unfit:
    """An index that is there and can't be used.

    Attributes:
        why: What is wrong with it and what to do, in sentences for people.
    """

    why: str


@dataclass(frozen=True)
class Wanted:
    """The data set that an index is looked for.

    Attributes:
        urls: What the user named.
        shards: The listing.
        matches: Of each shard, whether it is read.
        format: The format.
        options: The options of it that counts depend on, as text.
    """

    urls: Sequence[str]
    shards: ShardList
    matches: NDArray[np.bool_]
    format: Format
    options: str

    @classmethod
    def of(
        cls,
        urls: Sequence[str],
        shards: ShardList,
        matches: NDArray[np.bool_],
        format: Format,  # noqa: A002 - the word of the field
        options: Mapping[str, Any],
    ) -> Wanted:
        """The data set whose format was made with these options."""
        text = options_text(options, indexed=isinstance(format, IndexedFormat))
        return cls(urls, shards, matches, format, text)

    @property
    def streamed(self) -> bool:
        """Whether counts are in the index alone."""
        return not isinstance(self.format, IndexedFormat)


def look_up(index: str, data: Wanted, read: ReadSettings, group: Group) -> Known | Unfit | None:
    """What the index tells, or why it can't be used; None where there is none. All ranks call it together.

    Args:
        index: Its URL, or `"auto"` for the default place.
        data: The data set.
        read: How it is read.
        group: The ranks, of which one reads the index for all.

    Raises:
        DataNotFoundError: There is none at the URL.
        FormatError: What is there is no index, or (streamed formats) is not one of these shards.
    """
    if isinstance(data.format, FilteringFormat) and data.format.filters is not None:
        logger.info("The index is not asked: filters= goes by the statistics in the footers.")
        return None
    url = index if index == AUTO else normalise(index)
    if url == AUTO:
        folder = data_folder(data.urls, (shard.url for shard in data.shards))
        if folder is None:
            return None
        url = default_url(folder)
    found = led(group, lambda: _fetched(url, read, required=index != AUTO), "reading the index")
    if not found:
        logger.debug("There is no index at %s.", shown(url))
        return None
    try:
        table = IndexTable.from_bytes(found[len(_FOUND) :], shown(folder_of(url)), url)
        known = _known(table, data, url, tells=group.leads)
    except FormatError as error:
        if index != AUTO:
            raise
        if group.leads:
            logger.warning("%s The data are read without it.", error)
        return Unfit(str(error))
    count = int(data.matches.sum())
    logger.info("The index %s tells the counts of %d of %d shards.", shown(url), count - len(known.unknown), count)
    return known


def _fetched(url: str, read: ReadSettings, *, required: bool) -> bytes:
    """The object behind a mark, for it may be empty; nothing at all where there is none and none is required."""
    try:
        data = objects.get(url, read.storage_options, retry=read.retry)
    except (AccessError, CredentialsError) as error:
        if required:
            raise
        # What is not there is answered so as well, where a store does not let one list.
        logger.info("%s: whether there is an index can't be seen, and none is used (%s)", shown(url), error)
        return b""
    if data is None and required:
        raise DataNotFoundError(
            f"{shown(url)}: there is no such index. `streamio index URL... --out {shown(url)}` makes one."
        )
    return b"" if data is None else _FOUND + data


def _known(table: IndexTable, wanted: Wanted, url: str, *, tells: bool) -> Known:
    """What the index tells of the shards that are read; of what it does not know `tells` writes to the log.

    Raises:
        FormatError: The format does not know counts by itself, and the index does not know all shards.
    """
    rows = np.where(wanted.matches, table.rows_of(wanted.shards), -1)
    fits = table.made_by(rows, wanted.format.name, wanted.options)
    stale = np.flatnonzero(wanted.matches & (rows < 0))
    others = np.flatnonzero((rows >= 0) & ~fits)
    told = [(logging.WARNING, _stale(wanted, stale, url))] if len(stale) else []
    if len(others):
        text = (
            f"The index {shown(url)} has {len(others)} of these shards, but was made by another format, or with other "
            f"options than {wanted.format.name} {wanted.options}: make it with these (`streamio index`)."
        )
        told.append((logging.INFO, text))
    for level, text in told:
        if wanted.streamed:  # the rest can't be found out
            raise FormatError(text)
        if tells:
            logger.log(level, "%s Their footers are read.", text)
    numbers = np.flatnonzero(fits)
    part = table.taken(rows[numbers])
    form = wanted.format
    if wanted.streamed:
        columns = {
            name: part.splits(f"split_{name}") for name in ("records", "nbytes", "wire", "begin", "skip", "start")
        }
        urls = [wanted.shards[number].url for number in numbers.tolist()]
        form = Seeking(cast("StreamedFormat", form), Points.of(urls, part.lengths(), **columns))
    unknown = np.sort(np.concatenate([stale, others])).tolist()
    return Known(form, _counts(part, numbers, streamed=wanted.streamed), unknown, url)


def _stale(wanted: Wanted, stale: NDArray[np.int64], url: str) -> str:
    some = ", ".join(f"{shown(wanted.shards[number].url)} (shard {number})" for number in stale[:_SOME].tolist())
    more = f" and {len(stale) - _SOME} more" if len(stale) > _SOME else ""
    verb = "is" if len(stale) == 1 else "are"
    return (
        f"The index {shown(url)} is stale: {len(stale)} of {int(wanted.matches.sum())} shards {verb} not in it, or "
        f"{verb} of another size or version by now: {some}{more}. `streamio index` brings it up to date."
    )


def _counts(part: IndexTable, numbers: NDArray[np.int64], *, streamed: bool) -> bytes:
    """The counts of shards with these numbers as an Arrow stream for `join_counts`."""
    lengths, records = part.lengths(), part.splits("split_records")
    ends = np.cumsum(lengths)
    place = np.arange(len(records), dtype=np.int64) - np.repeat(ends - lengths, lengths)
    before = np.concatenate(([0], np.cumsum(records)))
    first = before[:-1] - np.repeat(before[ends - lengths], lengths)
    columns = {
        "shard": np.repeat(numbers, lengths),
        "part": place,
        "first": first,
        "records": records,
        "nbytes": part.splits("split_nbytes"),
        "wire": part.splits("split_wire"),
        "kept": np.ones(len(records), np.int64),
    }
    errors: list[str | None] = [None] * len(records)
    if not streamed:  # where slots stand for what is lost, it is told when they come
        broken = [(number, text) for number, text in zip(numbers.tolist(), part.errors(), strict=True) if text]
        lost = {"shard": [number for number, _ in broken], "part": [-1] * len(broken)}
        for name, values in columns.items():
            columns[name] = np.concatenate([values, np.array(lost.get(name, [0] * len(broken)), np.int64)])
        errors += [text for _, text in broken]
    return to_stream(columns, errors)
