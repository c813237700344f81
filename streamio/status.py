"""What a status is: one value out of the states of all ranks, sealed by a checksum, and checked when it is opened.

Where it lies is the business of `Checkpoints`; no I/O here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from streamio.errors import GroupError, StatusError
from streamio.loader.state import VERSION


def join(states: list[dict[str, Any]], steps_of: Callable[[dict[str, Any]], int]) -> dict[str, Any]:
    """One state out of those of all ranks, which must stand at the same place.

    With `end="exact"` ranks come to the end of an epoch apart, or have batches of which nothing was left: each has a
    place of its own then.

    Args:
        states: The ranks' states in rank order.
        steps_of: Global batches of the epoch that a state is in (indexed).

    Raises:
        GroupError: They do not.
    """
    plan = states[0]["plan"]
    streamed, exact = plan["kind"] == "streamed", plan["end"] == "exact"
    if streamed or exact:
        behind = min(states, key=lambda state: state["epoch"])
        states = [_in_epoch(state, behind, steps_of) for state in states]
    first = states[0]
    apart = ("k", "step", "lanes", "generations") if streamed or exact else ()
    for rank, state in enumerate(states):
        for name in (name for name in first if name not in apart):
            if state[name] != first[name]:
                raise GroupError(
                    f"Ranks stand at different places: {name} is {first[name]!r} on rank 0 and {state[name]!r} on "
                    f"rank {rank}. Save after the same number of batches on every rank, and before a rank goes on to "
                    "an epoch that others have not reached."
                )
    joined = dict(first)
    joined["step"] = max(state["step"] for state in states)
    if streamed:
        joined["lanes"] = {rank: lanes for state in states for rank, lanes in state["lanes"].items()}
    elif any((state["k"], state["step"]) != (first["k"], first["step"]) for state in states):
        joined["ranks"] = {str(rank): {"k": s["k"], "step": s["step"]} for rank, s in enumerate(states)}
    return joined


def seal(value: dict[str, Any]) -> bytes:
    """A status as it is written."""
    value = {**value, "status": "streamio"}
    return json.dumps({**value, "checksum": _checksum(value)}, indent=1).encode()


def opened(data: bytes, url: str) -> dict[str, Any]:
    """A status that is whole and ours.

    Raises:
        StatusError: It is torn, foreign, newer or damaged.
    """
    remedy = "Resume from another step (resume(loader, step=...)), or with fallback=True from the last good one."
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise StatusError(f"{url} is torn: {len(data)} bytes that are no JSON. {remedy}") from None
    if not isinstance(value, dict) or value.get("status") != "streamio":
        raise StatusError(f"{url} is foreign: it was not written by streamio. {remedy}")
    version = value.get("version")
    if isinstance(version, int) and version > VERSION:
        raise StatusError(
            f"{url} is newer: version {version}, and this streamio reads up to {VERSION}. Install a newer streamio."
        )
    if value.get("checksum") != _checksum(value):
        raise StatusError(f"{url} is damaged: its checksum does not match. {remedy}")
    return value


def begun(value: dict[str, Any]) -> bool:
    """Whether anything of a status's epoch has been delivered to any rank."""
    lanes = value.get("lanes", {}).values()
    return bool(value["k"] or value.get("turn") or "rest" in value or any(each["k"] or each["ended"] for each in lanes))


def _in_epoch(
    state: dict[str, Any], behind: dict[str, Any], steps_of: Callable[[dict[str, Any]], int]
) -> dict[str, Any]:
    """A rank that has just ended an epoch which others are still in, as seen from there: nothing of it is left."""
    epoch = behind["epoch"]
    if state["epoch"] != epoch + 1 or state["k"]:
        return state
    if "lanes" not in state:
        return {**behind, "step": state["step"], "k": steps_of(behind)}
    if any(lanes["k"] for lanes in state["lanes"].values()):
        return state
    columns = behind["plan"]["columns"]
    ended = {"cursors": [[0]] * columns, "ended": list(range(columns))}
    return {**behind, "step": state["step"], "lanes": {rank: {**own, **ended} for rank, own in state["lanes"].items()}}


def _checksum(value: dict[str, Any]) -> str:
    content = {name: item for name, item in value.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
