"""Maps that break, leave or hang, for the tests of workers; in a module of their own, for spawned ones import them."""

from __future__ import annotations

import os
import time
from typing import Any


def exit_at_30(record: dict[str, Any]) -> dict[str, Any]:
    if record["id"] == 30:
        os._exit(7)
    return record


def fail_at_30(record: dict[str, Any]) -> dict[str, Any]:
    if record["id"] == 30:
        raise KeyError("thirty")
    return record


def sleep_long(record: dict[str, Any]) -> dict[str, Any]:
    time.sleep(30)
    return record
