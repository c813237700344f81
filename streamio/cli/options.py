"""The options that all commands share: their names and help, and how their texts become values. No I/O."""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, TypeAlias

import typer

#: Characters of a text that is taken for a credential at least: shorter ones would tear words apart.
SHORTEST = 8

#: What `--filters` takes.
_SHAPES = 'JSON: [["lang", "==", "en"], ["score", ">", 0.5]] (all of these), or a list of such lists (one of these)'

#: Values in `--filters` that JSON does not have.
_TYPES = {"date": datetime.date.fromisoformat, "datetime": datetime.datetime.fromisoformat}

_SECRET = re.compile(r"key|secret|token|passw|cred|sas|auth|sign", re.IGNORECASE)


class Folders(str, Enum):
    """The values of `--partitions`."""

    hive = "hive"


class _Stderr(logging.Handler):
    """Writes log records to whatever stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"streamio: {record.getMessage()}", err=True)


_handler = _Stderr()


def _log(verbose: int) -> None:
    logger = logging.getLogger("streamio")
    logger.addHandler(_handler)  # once, however often
    logger.setLevel([logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)])


Urls: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="URL...", help="URLs, globs (`**` too), folders or paths.", show_default=False),
]
StorageOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Option for the store, as in fsspec's storage_options; once for each. A VALUE that is JSON counts as "
        "such, dots in KEY nest: client_kwargs.region_name=us-east-1.",
        show_default=False,
    ),
]
EndpointUrl: TypeAlias = Annotated[
    str | None, typer.Option(help="Short for --storage-option endpoint_url=URL.", metavar="URL", show_default=False)
]
Workers: TypeAlias = Annotated[
    int,
    typer.Option("--workers", "--num-workers", metavar="N", min=0, help="Workers of each rank; 0 counts as one."),
]
Format: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Format, where suffixes do not tell it (parquet, jsonl, tar).", show_default=False),
]
Columns: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Columns or keys to read; all by default.", show_default=False),
]
Partitions: TypeAlias = Annotated[
    Folders | None,
    typer.Option(help="Read folders like lang=de/ as columns, as partitions= does.", show_default=False),
]
Filters: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help='Records to read, as filters= takes them: \'[["lang", "==", "en"], ["score", ">", 0.5]]\'.',
        show_default=False,
    ),
]
Index: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="URL|none", help="Index of the data. Default: the one beside them, if any.", show_default=False
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Output for programs.")]
Verbose: TypeAlias = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, callback=_log, help="Log more; -vv even more.", show_default=False),
]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def storage_options(pairs: Sequence[str] | None, endpoint_url: str | None = None) -> dict[str, Any]:
    """The `storage_options` that were given on the command line; of two with one key the later counts.

    Args:
        pairs: Texts `KEY=VALUE`. Dots in the key nest; a value that is JSON is read as such, others are text.
        endpoint_url: Value of `--endpoint-url`.

    Raises:
        typer.BadParameter: A text without a key, or a key that is both a value and a group of others.
    """
    options: dict[str, Any] = {}
    for pair in [*(pairs or ()), *([f"endpoint_url={json.dumps(endpoint_url)}"] if endpoint_url else [])]:
        key, separator, text = pair.partition("=")
        names = key.split(".")
        if not separator or not all(names):
            # The text may be a credential: it is not repeated.
            raise typer.BadParameter("takes KEY=VALUE, as in anon=true", param_hint="--storage-option")
        place = options
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise typer.BadParameter(f"{key}: {name} has a value already", param_hint="--storage-option")
        place[names[-1]] = _value(text)
    return options


def columns(text: str | None) -> list[str] | None:
    """The names in `A,B`; None where nothing was given.

    Raises:
        typer.BadParameter: An empty name.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise typer.BadParameter("takes names with commas between them, as in id,text", param_hint="--columns")
    return names


def index(text: str) -> str | None:
    """The `index=` of `--index`: None for "none".

    Raises:
        typer.BadParameter: An empty text.
    """
    if not text:
        raise typer.BadParameter("takes the URL of an index, or none", param_hint="--index")
    return None if text == "none" else text


def filters(text: str | None) -> list[Any] | None:
    """The `filters=` of `--filters`, which is JSON of it; None where nothing was given.

    Lists stand for the tuples that JSON does not have, and `{"date": "2024-01-31"}` and
    `{"datetime": "2024-01-31T12:00:00"}` for values that it does not have.

    Raises:
        typer.BadParameter: No JSON, or nothing that `filters=` takes.
    """
    if text is None:
        return None
    from streamio.formats.filters import checked

    try:
        given = _terms(json.loads(text))
        if not (given and isinstance(given, list)):
            raise TypeError(f"{text} is no list of terms.")  # noqa: TRY301 - told with the shape that is wanted
        checked(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise typer.BadParameter(f"takes {_SHAPES}. {error}", param_hint="--filters") from None
    return given


def secrets(arguments: Sequence[str]) -> list[str]:
    """The values of those storage options among a command's arguments that may be credentials."""
    found: set[str] = set()
    for before, argument in zip(["", *arguments], arguments, strict=False):
        name, _, rest = argument.partition("=")
        pair = argument if before == "--storage-option" else rest if name == "--storage-option" else ""
        key, _, text = pair.partition("=")
        found |= {value for path, value in _leaves(key, _value(text)) if _SECRET.search(path)}
    return sorted((text for text in found if len(text) >= SHORTEST), key=len, reverse=True)


def _terms(value: Any) -> Any:
    """JSON of a filter with terms as tuples: a list of lists is a list of terms, or of such lists."""
    if not isinstance(value, list):
        return value
    if not value or isinstance(value[0], list):
        return [_terms(each) for each in value]
    return tuple(_typed(each) for each in value)


def _typed(value: Any) -> Any:
    """A value of a term; an object tells the type of one that JSON does not have."""
    if isinstance(value, list):
        return [_typed(each) for each in value]
    if not isinstance(value, dict):
        return value
    try:
        ((name, text),) = value.items()
        return _TYPES[name](text)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f'{json.dumps(value)} is no value: say {{"date": "2024-01-31"}} or {{"datetime": "2024-01-31T12:00:00"}}.'
        ) from None


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """The single values within a value, as text, each with the keys that lead to it."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}", inner)
    else:
        yield path, str(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
