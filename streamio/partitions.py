"""Hive-partitioned layouts: what the folders of a shard's URL (`lang=en/year=2024/`) tell, as columns.

A pure function of the URL, so that workers derive it; which shards are read for it is decided in `settle.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import unquote

from streamio.errors import FormatError
from streamio.storage.faults import shown

if TYPE_CHECKING:
    import pyarrow as pa

#: `partitions=`: `"hive"`, or types by key: pyarrow's, their names, or `int`, `float`, `str`, `bool`.
PartitionsOption: TypeAlias = "Literal['hive'] | Mapping[str, Any] | None"

#: How Hive writes a value that is not there.
NULL = "__HIVE_DEFAULT_PARTITION__"

_PYTHON = {int: "int64", float: "float64", str: "string", bool: "bool"}


@dataclass(frozen=True)
class Partitions:
    """The partition keys of a data set.

    Attributes:
        keys: All keys, in the order of the folders.
        types: Their pyarrow types.
        delivered: Those that records and batches carry.
    """

    keys: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    delivered: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Keys and types."""
        import pyarrow as pa

        return pa.schema(list(zip(self.keys, self.types, strict=True)))

    def columns(self, urls: Sequence[str]) -> dict[str, pa.Array]:
        """The values of shards, in the order given, a column for each key.

        Raises:
            FormatError: A value can't be cast to its type.
        """
        told = [told_by(url) for url in urls]
        return {
            key: _cast([dict(values)[key] for values in told], key, kind, urls)
            for key, kind in zip(self.keys, self.types, strict=True)
        }

    def values(self, url: str) -> dict[str, Any]:
        """What the records of a shard carry: plain Python values of the delivered keys."""
        columns = self.columns([url])
        return {key: columns[key][0].as_py() for key in self.delivered}


def find(option: PartitionsOption, urls: Iterable[str], columns: Sequence[str] | None) -> Partitions | None:
    """The partitions of shards with these URLs, of which every value is looked at.

    Args:
        option: What the user asked for; None for nothing.
        urls: The shards, at least one.
        columns: The columns that are wanted, keys among them; None for all.

    Raises:
        FormatError: URLs without keys, or with different ones; a value that can't be cast to its type.
    """
    if option is None:
        return None
    kept = [*one_a_folder(urls)]
    first = kept[0]
    keys = tuple(key for key, _ in told_by(first))
    if not keys:
        raise FormatError(
            f"partitions= takes folders such as year=2024/ for columns, and {shown(first)} has none: "
            "correct the URL, or say partitions=None."
        )
    for url in kept:
        others = tuple(key for key, _ in told_by(url))
        if others != keys:
            raise FormatError(
                f"All shards must have the same partition keys in the same order, but {shown(first)} has "
                f"{_listed(keys)} and {shown(url)} has {_listed(others)}: narrow the URLs, or say partitions=None."
            )
    types = dict.fromkeys(keys, _type(str)) | {key: _type(kind) for key, kind in _given(option).items()}
    unknown = types.keys() - set(keys)
    if unknown:
        raise FormatError(
            f"partitions= speaks of {min(unknown)!r}, and the keys of {shown(first)} are {_listed(keys)}."
        )
    delivered = keys if columns is None else tuple(key for key in keys if key in columns)
    if columns is not None and len(delivered) == len(set(columns)):
        raise FormatError(
            f"columns= names nothing but the partition keys {_listed(delivered)}: name at least one column of the file."
        )
    found = Partitions(keys, tuple(types[key] for key in keys), delivered)
    for column in found.columns(kept).values():
        column.to_pylist()  # a date after the year 9999 has no object
    return found


def check(option: Any) -> None:
    """Check a user's option by itself.

    Raises:
        TypeError: It is neither None, nor "hive", nor a mapping of names to types.
        ValueError: Another word than "hive", or a type that pyarrow does not have.
    """
    if option is None or option == "hive":
        return
    if isinstance(option, str):
        raise ValueError(  # noqa: TRY004 - a word, but a wrong one
            f"partitions={option!r} is not known; use 'hive', or types by key ({{'year': 'int32'}})."
        )
    if not isinstance(option, Mapping) or not all(isinstance(key, str) for key in option):
        raise TypeError(f"partitions={option!r} must be 'hive', or types by key ({{'year': 'int32'}}).")
    for key, kind in option.items():
        try:
            _type(kind)
        except (TypeError, ValueError):  # noqa: PERF203 - a handful
            raise ValueError(
                f"partitions={{{key!r}: {kind!r}}}: there is no such type. Give one of pyarrow's, its name "
                "('int32', 'date32'), or int, float, str or bool."
            ) from None


def conflict(url: str, key: str) -> FormatError:
    """The error where a key is also a column of a file, or of a record."""
    return FormatError(
        f"{shown(url)} has a column {key!r}, and a partition key of that name in its URL. Say partitions=None to have "
        "the column, or name the columns that you want by columns= and leave this one out."
    )


def told_by(url: str) -> tuple[tuple[str, str | None], ...]:
    """Keys and values of a normalised URL, in the order of its folders; of a chain the store's come first.

    Raises:
        FormatError: A key that comes twice, or an escape that is no text.
    """
    pairs: list[tuple[str, str | None]] = []
    for segment in _folders(url):
        key, equals, value = segment.partition("=")
        if key and equals:
            try:
                key, value = unquote(key, errors="strict"), unquote(value, errors="strict")
            except UnicodeDecodeError:
                raise FormatError(f"{shown(url)}: the folder {segment!r} has escapes that are no UTF-8.") from None
            pairs.append((key, None if value == NULL else value))
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise FormatError(f"{shown(url)} has the partition key {key!r} twice: say partitions=None.")
    return tuple(pairs)


def one_a_folder(urls: Iterable[str]) -> dict[str, int]:
    """One URL of each folder, in their order, with its number: all in a folder have the same values."""
    folders: dict[str, str] = {}
    for url in urls:
        folders.setdefault(folder_of(url), url)
    return {url: number for number, url in enumerate(folders.values())}


def folder_of(url: str) -> str:
    """A URL without its last part, which tells nothing here."""
    return url.rpartition("/")[0]


def _folders(url: str) -> list[str]:
    first, chained, rest = url.partition("::")
    scheme, named, path = first.partition("://")
    if not named:  # a cache before a store, or an archive as a whole
        return _folders(rest) if chained else []
    if scheme in ("http", "https"):
        path = path.partition("?")[0].partition("#")[0]
    segments = path.split("/")[:-1]
    if not chained and scheme != "memory":
        segments = segments[1:]  # host, bucket or container
    return [*(_folders(rest) if chained else ()), *segments]


def _given(option: Literal["hive"] | Mapping[str, Any]) -> Mapping[str, Any]:
    return option if isinstance(option, Mapping) else {}


def _type(kind: Any) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, pa.DataType):
        return kind.value_type if pa.types.is_dictionary(kind) else kind
    name = _PYTHON.get(kind, kind)
    if not isinstance(name, str):
        raise TypeError(f"{kind!r} is no type")
    return pa.type_for_alias(name)


def _cast(values: list[str | None], key: str, kind: pa.DataType, urls: Sequence[str]) -> pa.Array:
    import pyarrow as pa

    plain = pa.array(values, pa.string())
    try:
        return plain.cast(kind)
    except (pa.ArrowException, ValueError) as error:
        for url, value in zip(urls, values, strict=True):
            try:
                pa.array([value], pa.string()).cast(kind)
            except (pa.ArrowException, ValueError):  # noqa: PERF203 - looks for the culprit
                raise FormatError(
                    f"{shown(url)}: the value {value!r} of the partition key {key!r} is no {kind}: "
                    f"give another type in partitions=, or 'string'."
                ) from None
        raise FormatError(f"The partition key {key!r} can't be of the type {kind}: {error}") from error


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(map(repr, keys)) or "none"
