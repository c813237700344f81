"""What one rank finds out for all, or all for each other.

An error of one is an error of all, so nobody waits in vain.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamio import errors

if TYPE_CHECKING:
    from streamio.group import Group


def led(group: Group, make: Callable[[], bytes], what: str) -> bytes:
    """The leading rank makes the bytes, all get them.

    Raises:
        StreamioError: Making them failed; on every rank, as the same error.
    """
    if group.alone:
        return make()
    return _opened([group.broadcast(_closed(make) if group.leads else None, what=what)])[0]


def shared(group: Group, make: Callable[[], bytes], what: str) -> list[bytes]:
    """Every data-parallel rank makes its bytes, all get those of all, in rank order.

    Raises:
        StreamioError: Making them failed somewhere; on every rank, as the same error.
    """
    if group.alone:
        return [make()]
    return _opened(group.gather(_closed(make), what=what))


def _closed(make: Callable[[], bytes]) -> bytes:
    try:
        return b"+" + make()
    except Exception as error:  # noqa: BLE001 - raised again by everybody
        return b"-" + json.dumps([type(error).__name__, str(error)]).encode()


def _opened(parts: list[bytes]) -> list[bytes]:
    for part in parts:
        if part[:1] == b"-":
            name, text = json.loads(part[1:])
            kind = getattr(errors, name, None)
            if isinstance(kind, type) and issubclass(kind, errors.StreamioError):
                raise kind(text)
            raise errors.GroupError(f"{name}: {text}")
    return [part[1:] for part in parts]
