"""Checks of single options where they come in: each function gives the value back as it is used from there on.

A wrong type is a TypeError, a wrong value a ValueError, and both name the option, show the value and say what it takes.
Which options go together is not known here.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any


def whole(name: str, value: Any, least: int | None = None, *, also: str = "") -> int:
    """An int, of whatever integer type it came; a bool is none.

    Args:
        name: The option.
        value: What was given.
        least: The least that it may be; None for any.
        also: What else the option takes, for the message.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        bound = "" if least is None else f" of {least} or more"
        raise TypeError(f"{name}={value!r} must be an int{bound}{also}.")
    if least is not None and found < least:
        raise ValueError(f"{name}={found} must be {least} or more{also}.")
    return found


def whole_or_none(name: str, value: Any, least: int | None = None) -> int | None:
    """As `whole`, or None."""
    return None if value is None else whole(name, value, least, also=", or None")


def real(name: str, value: Any, *, zero: bool = False, hint: str = "") -> float:
    """A finite number above 0; from 0 on with `zero`. `hint` is put behind the message."""
    takes = f"{name}={value!r} must be a finite number {'of 0 or more' if zero else 'above 0'}{hint}."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(takes)
    found = float(value)
    if not 0 <= found < math.inf or not (found or zero):
        raise ValueError(takes)
    return found


def flags(**values: Any) -> None:
    """Options that are True or False, by name."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r} must be True or False.")


def one_of(name: str, value: Any, allowed: tuple[str | None, ...]) -> None:
    """One of several words, or None where that is among them."""
    error = ValueError if value is None or isinstance(value, str) else TypeError
    if error is TypeError or value not in allowed:
        raise error(f"{name}={value!r} is not known; use one of {', '.join(map(repr, allowed))}.")


def kind(name: str, value: Any, types: Any, what: str) -> None:
    """None, or what `isinstance` says is of these types (`Callable` among them); `what` describes them."""
    if value is not None and not isinstance(value, types):
        raise TypeError(f"{name}={value!r} must be {what}.")


def names(name: str, value: Any, *, empty: bool = False) -> tuple[str, ...]:
    """A list of names; one at least, but for `empty`."""
    if isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a list of names, as in {name}=[{value!r}].")
    try:
        found = tuple(value)
    except TypeError:
        found = (None,)
    if not all(isinstance(each, str) for each in found):
        raise TypeError(f"{name}={value!r} must be a list of names.")
    if not (found or empty):
        raise ValueError(f"{name}={value!r} must hold one name at least.")
    return found


def mapping(name: str, value: Any, what: str, values: Any = object, *, secret: bool = False) -> dict[str, Any]:
    """A dict of text to `values` (types, as for `kind`), empty for None; what is `secret` is not shown."""
    if value is None:
        return {}
    fits = isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, values) for k, v in value.items())
    if not fits:
        raise TypeError(f"{name}{'' if secret else f'={value!r}'} must be a mapping of {what}.")
    return dict(value)


def storage(options: Any) -> dict[str, Any]:
    """The option `storage_options`, whose values may be credentials."""
    return mapping("storage_options", options, "option names to values", secret=True)


def checked_urls(urls: Any) -> list[str]:
    """The option `urls`: a URL or path, or several."""
    if not isinstance(urls, (str, os.PathLike, Sequence)):
        raise TypeError(f"urls={urls!r} must be a URL or a list of URLs.")
    several = [urls] if isinstance(urls, (str, os.PathLike)) else list(urls)
    if not several:
        raise ValueError("urls is empty: give at least one URL, glob or folder.")
    for url in several:
        if not isinstance(url, (str, os.PathLike)) or not str(url).strip():
            raise TypeError(f"urls holds {url!r}, which is no URL: give strings or paths.")
    return [os.fspath(url) for url in several]


def checked_lanes(lanes: Any) -> tuple[int, int] | None:
    """The option `lanes`; whether rows and columns fit is found out where ranks and workers are known."""
    if lanes is None:
        return None
    try:
        rows, columns = (whole("lanes", each) for each in lanes)
    except (TypeError, ValueError):
        raise TypeError(f"lanes={lanes!r} must be two ints: rows and columns.") from None
    if min(rows, columns) < 1:
        raise ValueError(f"lanes=({rows}, {columns}): give rows and columns of 1 or more.")
    return rows, columns


def checked_max_drops(value: Any) -> int | float | None:
    """The option `max_drops`: a count, a fraction, or None."""
    if value is None:
        return None
    takes = f"max_drops={value!r} must be a count (an int of 0 or more) or a fraction (a float from 0 to below 1)."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(takes)
    given = int(value) if isinstance(value, Integral) else float(value)
    if given < 0 or not (isinstance(given, int) or given < 1):
        raise ValueError(takes)
    return given
