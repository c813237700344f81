"""Which format reads which shard: the built-in ones, and those of third parties.

A format is found by the suffix of the URL, or by its name. Nothing is opened here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

from streamio.errors import FormatError
from streamio.formats.arrow import Arrow
from streamio.formats.base import Format
from streamio.formats.csv import Csv
from streamio.formats.files import Files
from streamio.formats.lines import Lines
from streamio.formats.names import basename
from streamio.formats.parquet import Parquet
from streamio.formats.tar import Tar
from streamio.formats.text import Text
from streamio.storage.faults import shown

FormatFactory: TypeAlias = Callable[..., Format]

ENTRY_POINTS = "streamio.formats"
"""The entry point group in which packages announce formats: any name, a format class or a factory."""

_log = logging.getLogger(__name__)


class _Registry:
    def __init__(self) -> None:
        self.factories: dict[str, FormatFactory] = {}
        self.names: dict[str, str] = {}  # by suffix

    def add(self, factory: FormatFactory, *, replace: bool) -> None:
        name, suffixes = _described(factory)
        if replace or name not in self.factories:
            self.factories[name] = factory
            for suffix in suffixes:
                if replace or suffix not in self.names:
                    self.names[suffix] = name


def for_url(
    url: str,
    *,
    format: str | None = None,  # noqa: A002 - the user's word for it
    options: Mapping[str, Any] | None = None,
) -> Format:
    """The format of one shard, made with the data set's options.

    Args:
        url: The shard's URL. The longest suffix that is known wins, in any case of letters.
        format: Name of a format that is taken whatever the suffix says; the suffix still tells the
            compression.
        options: `columns` (names) and `decode` (functions by extension), and whatever else a third party's
            format takes. Those that are None are left out.

    Raises:
        FormatError: The suffix or name is unknown, or an option does not apply to the format or has a wrong
            type.
    """
    name = name_for(url, format=format)
    factory = _registry().factories[name]
    given = {key: _checked(key, value) for key, value in (options or {}).items() if value is not None}
    parameters = inspect.signature(factory).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for key in given:
            if key not in parameters:
                takes = ", ".join(f"{parameter}=" for parameter in parameters) or "no options"
                raise FormatError(f"{key}= does not apply to the format {name!r} of {shown(url)}: it takes {takes}")
    return factory(**given)


def for_urls(
    urls: Iterable[str],
    *,
    format: str | None = None,  # noqa: A002
    options: Mapping[str, Any] | None = None,
) -> Format:
    """The one format of all shards of a data set; their suffixes may differ (`.jsonl` and `.jsonl.gz`).

    Args:
        urls: URLs of the shards, at least one.
        format: See `for_url`.
        options: See `for_url`.

    Raises:
        FormatError: As `for_url`; or two shards have different formats, or there are none.
    """
    first, expected = "", ""
    for url in urls:
        name = name_for(url, format=format)
        if not expected:
            first, expected = url, name
        elif name != expected:
            raise FormatError(
                f"a data set has one format, but {shown(first)} is {expected!r} and {shown(url)} is {name!r}:"
                " narrow the glob, or make a data set of each"
            )
    if not expected:
        raise FormatError("there are no shards to choose a format for")
    return for_url(first, format=format, options=options)


def name_for(url: str, *, format: str | None = None) -> str:  # noqa: A002
    """The name of the format that reads a shard.

    Raises:
        FormatError: The suffix or name is unknown.
    """
    registry = _registry()
    if format is not None:
        if format not in registry.factories:
            raise FormatError(f"there is no format {format!r}: known are {', '.join(sorted(registry.factories))}")
        return format
    name = _by_suffix(url)
    if name is None:
        raise FormatError(
            f"the name of {shown(url)} does not tell its format. Known suffixes: {' '.join(known())}."
            f" For other names say format= ({', '.join(sorted(registry.factories))})"
        )
    return name


def accepts(url: str) -> bool:
    """Whether the suffix of a URL is that of a known format."""
    return _by_suffix(url) is not None


def known() -> list[str]:
    """All known suffixes, sorted."""
    return sorted(_registry().names)


def register(factory: FormatFactory) -> None:
    """Make a format known in this process; it replaces what had its name or suffixes.

    A format object travels to workers with its data set, so this need not be called in them.

    Args:
        factory: A class of the protocol `IndexedFormat` or `StreamedFormat`, or a function that returns such
            an object. Its parameters are the options that the format takes, each with a default.

    Raises:
        FormatError: It has no proper `name` and `suffixes`.
    """
    _registry().add(factory, replace=True)


@lru_cache(maxsize=1)
def _registry() -> _Registry:
    registry = _Registry()
    for factory in (Parquet, Arrow, Lines, Csv, Tar, Text, Files):
        registry.add(factory, replace=True)
    for entry_point in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: (entry.name, entry.value)):
        _add_installed(registry, entry_point)
    return registry


def _add_installed(registry: _Registry, entry_point: EntryPoint) -> None:
    try:
        registry.add(entry_point.load(), replace=False)  # what is installed does not change what is built in
    except Exception as error:  # noqa: BLE001 - a broken plug-in must not take the others with it
        _log.warning("the format %s (%s) can't be used: %s", entry_point.name, entry_point.value, error)


def _by_suffix(url: str) -> str | None:
    names = _registry().names
    base = basename(url)
    place = base.find(".")
    while place >= 0:
        name = names.get(base[place:])
        if name is not None:
            return name
        place = base.find(".", place + 1)
    return None


def _described(factory: Any) -> tuple[str, tuple[str, ...]]:
    """Name and suffixes, which a class has as attributes; a function is called for them."""
    described = factory if hasattr(factory, "suffixes") and hasattr(factory, "name") else factory()
    name, suffixes = described.name, tuple(described.suffixes)
    if not isinstance(name, str) or not name:
        raise FormatError(f"the format {factory!r} has no name")
    for suffix in suffixes:
        if not isinstance(suffix, str) or not suffix.startswith(".") or suffix != suffix.lower():
            raise FormatError(f"the suffix {suffix!r} of the format {name!r} must be lower case and begin with a dot")
    return name, suffixes


def _checked(key: str, value: Any) -> Any:
    if key == "columns":
        names = value if isinstance(value, (list, tuple)) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise FormatError(f"columns= takes a list of at least one name, not {value!r}")
        return tuple(dict.fromkeys(names))
    if key == "decode" and not (isinstance(value, Mapping) and all(map(callable, value.values()))):
        raise FormatError(f"decode= takes a dict of functions by extension, not {value!r}")
    return value
