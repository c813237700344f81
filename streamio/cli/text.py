"""Values as text for people and for programs. Nothing is printed here."""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping
from typing import Any


def size(nbytes: int) -> str:
    """A number of bytes for people ("1.5 MiB")."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.3g} {unit}"


def several(count: int, what: str) -> str:
    """A count with its word, whose plural is made by an s ("1 shard", "1,200 shards")."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def url(text: str) -> str:
    """A URL that is safe to show: no credentials, and no characters that a terminal would act upon."""
    from streamio.storage.faults import shown

    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown(text))


def json_line(value: Any, *, whole: bool = True) -> bytes:
    """A value as one line of JSON in UTF-8, without the end of the line.

    Dates and times are in ISO 8601, durations in seconds, decimals as text, numbers that JSON does not know (NaN)
    as null, what else JSON does not know as its `str`.

    Args:
        value: The value.
        whole: Whether bytes are written out, in base64; else as `<123 bytes>`.
    """
    ready = _ready(value, whole)
    try:
        return json.dumps(ready, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(ready).encode()


def _ready(value: Any, whole: bool) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _ready(item, whole) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_ready(item, whole) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return base64.b64encode(data).decode() if whole else f"<{several(len(data), 'byte')}>"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value)
