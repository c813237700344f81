"""Formats of shards: the protocol, the built-in ones, and the registry that finds them by suffix."""

from streamio.formats.base import (
    Bad,
    CorruptError,
    Counts,
    Format,
    IndexedFormat,
    Record,
    Row,
    Rows,
    Source,
    StreamedFormat,
)
from streamio.formats.registry import accepts, for_url, for_urls, known, name_for, register

__all__ = [
    "Bad",
    "CorruptError",
    "Counts",
    "Format",
    "IndexedFormat",
    "Record",
    "Row",
    "Rows",
    "Source",
    "StreamedFormat",
    "accepts",
    "for_url",
    "for_urls",
    "known",
    "name_for",
    "register",
]
