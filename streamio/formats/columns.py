"""What is wrong with the columns that are wanted of a shard, said alike for all formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamio.errors import FormatError
from streamio.storage.faults import shown


def check_columns(url: str, wanted: Iterable[str], there: Sequence[str]) -> None:
    """Refuse columns that are not there, or there twice.

    Raises:
        FormatError: The first that is wrong.
    """
    for name in wanted:
        if name not in there:
            raise missing_column(url, name, there)
        if there.count(name) > 1:
            raise repeated_column(url, name)


def missing_column(url: str, name: str, there: Sequence[str]) -> FormatError:
    """The error for a column that is not there."""
    return FormatError(f"{shown(url)} has no column {name!r}; it has {', '.join(map(repr, there))}")


def repeated_column(url: str, name: str) -> FormatError:
    """The error for a name that several columns have."""
    return FormatError(
        f"{shown(url)} has several columns of the name {name!r}, and a record can hold but one:"
        " name the columns that you want by columns="
    )
