"""Checkpoints: a loader's status in object storage, beside the model's files of the same step.

One small JSON object a step, written by one rank with a single PUT; the list of shards is written once. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from streamio.errors import DataNotFoundError, GroupError, StatusError
from streamio.loader.state import VERSION, State
from streamio.observe.drops import DropLog
from streamio.storage import objects
from streamio.storage.retry import Retry
from streamio.storage.shards import ShardList
from streamio.storage.urls import normalise
from streamio.together import led, shared

if TYPE_CHECKING:
    from streamio.loader.dataloader import DataLoader

logger = logging.getLogger(__name__)

STATUS = "streamio.json"
DROPS = "streamio-drops.jsonl"


class Checkpoints:
    """The statuses below one folder: `<url>/step-00001000/streamio.json`, and the drop report beside each.

    Args:
        url: The trainer's own checkpoint folder; any URL that fsspec writes.
        storage_options: Passed to fsspec.
        keep: Statuses that stay; older ones are removed after a save, our own objects only. None keeps all.
        retry: How storage calls are retried.

    Raises:
        ValueError: `keep` is less than 1.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        keep: int | None = None,
        retry: Retry | None = None,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep={keep} must be 1 or more, or None to keep all.")
        self._url = normalise(url).rstrip("/")
        self._access: dict[str, Any] = {"storage_options": dict(storage_options or {}), "retry": retry or Retry()}
        self._keep = keep
        self._lists_written: set[str] = set()

    def save(self, loader: DataLoader, step: int | None = None) -> str:
        """Write the status behind the last batch delivered. All ranks call it together.

        Args:
            loader: The loader.
            step: The trainer's number for it. Default: `loader.step`.

        Returns:
            URL of the status.

        Raises:
            GroupError: A rank did not come, or ranks stand at different places.
            TooManyDropsError: All ranks together dropped more than `max_drops`.
        """
        topology, group = loader.dataset.prepare().topology, loader.dataset.group
        state = loader.state()
        if group.alone and topology.world_size > 1 and state.plan["kind"] == "streamed":
            raise GroupError(
                f"The lanes of {topology.world_size} ranks have to be gathered to save a streamed data set: "
                f"call torch.distributed.init_process_group first."
            )
        mine = {
            "state": state.to_json(),
            "drops": loader.ledger.drops.to_json(),
            "delivered": loader.stats().records,
        }
        ranks = [json.loads(part) for part in shared(group, lambda: json.dumps(mine).encode(), "saving the status")]
        value = _joined([rank["state"] for rank in ranks])
        drops = DropLog()
        drops.merge(loader.ledger.drops_before)
        for rank in ranks:
            drops.merge(DropLog.from_json(rank["drops"]))
        delivered = loader.ledger.delivered_before + sum(rank["delivered"] for rank in ranks)
        loader.ledger.check(drops.total, delivered)
        folder = self._folder(value["step"] if step is None else step)
        value["drops"] = {"reasons": dict(drops.reasons), "delivered": delivered}

        def write() -> bytes:
            if topology.rank == 0 and group.leads:
                self._write(folder, value, drops, loader.dataset.prepare().shards)
            return b""

        led(group, write, "writing the status")
        return f"{folder}/{STATUS}"

    def resume(
        self,
        loader: DataLoader,
        step: int | None = None,
        *,
        allow: Collection[str] = (),
        fallback: bool = False,
    ) -> int | None:
        """Let the loader go on from a status. All ranks call it together.

        Args:
            loader: The loader.
            step: The step that the trainer resumed its model from. Default: the newest.
            allow: What may differ from when the status was saved: `"data"`, `"seed"`, `"shuffle"`, `"window"`,
                `"end"`, `"drop_last"`, `"on_drop"`.
            fallback: Go to the last good status where the newest is torn or damaged.

        Returns:
            The step; None where there is no status yet, so that this is a first start.

        Raises:
            StatusError: The status can't be used, with the reason.
            ValueError: Several ranks without a process group, and no step told.
        """
        settled, group = loader.dataset.prepare(), loader.dataset.group
        if group.alone and settled.topology.world_size > 1 and step is None:
            raise ValueError(
                f"Without a process group {settled.topology.world_size} ranks can't agree on a status: tell "
                "resume(loader, step=...), "
                f"or call torch.distributed.init_process_group first."
            )

        def choose() -> bytes:
            value = self._choose(step, fallback)
            if value is None:
                return b""
            drops = objects.get(f"{self._folder(value['saved_as'])}/{DROPS}", **self._access) or b""
            told = [json.loads(line) for line in drops.splitlines() if line.strip()]
            return json.dumps(
                {"value": value, "places": told, "data": self._difference(value, settled.shards)}
            ).encode()

        chosen = led(group, choose, "choosing a status")
        if not chosen:
            return None
        found = json.loads(chosen)
        value = found["value"]
        state = State.from_json(value, settled.topology.rank)
        loader.adopt(state, allow, found["data"])
        reasons, delivered = value["drops"]["reasons"], value["drops"]["delivered"]
        loader.ledger.take_up(DropLog.from_json({"reasons": reasons, "places": found["places"]}), delivered)
        logger.info("Resumed from step %d: epoch %d, batch %d.", value["saved_as"], state.start.epoch, state.start.k)
        return int(value["saved_as"])

    def list(self) -> Sequence[int]:
        """Steps that have a status, rising."""
        return [step for step in self._steps() if objects.exists(f"{self._folder(step)}/{STATUS}", **self._access)]

    def latest(self) -> int | None:
        """The newest step that has a status; None where none has."""
        for step in reversed(self._steps()):
            if objects.exists(f"{self._folder(step)}/{STATUS}", **self._access):
                return step
        return None

    def _folder(self, step: int) -> str:
        return f"{self._url}/step-{step:08d}"

    def _steps(self) -> Sequence[int]:
        """Steps that have a folder, whether of ours or only of the trainer."""
        try:
            names = objects.ls(self._url, **self._access)
        except DataNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d{8,})", name)))

    def _write(self, folder: str, value: dict[str, Any], drops: DropLog, shards: ShardList) -> None:
        """The status last: where it lies, what it speaks of lies there too."""
        name = f"streamio-shards-{shards.digest[:16]}.arrow"
        if name not in self._lists_written:
            if not objects.exists(f"{self._url}/{name}", **self._access):
                objects.put(f"{self._url}/{name}", shards.without_credentials().to_bytes(), **self._access)
            self._lists_written.add(name)
        report = "".join(json.dumps(asdict(drop)) + "\n" for drop in drops.places())
        if report:
            objects.put(f"{folder}/{DROPS}", report.encode(), **self._access)
        value["shards"]["list"] = name
        value["saved_as"] = int(folder.rpartition("-")[2])
        value["saved_at"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        value["status"] = "streamio"
        value["checksum"] = _checksum(value)
        objects.put(f"{folder}/{STATUS}", json.dumps(value, indent=1).encode(), **self._access)
        if self._keep is not None:
            for step in self.list()[: -self._keep]:
                for own in (STATUS, DROPS):
                    objects.remove(f"{self._folder(step)}/{own}", **self._access)

    def _choose(self, step: int | None, fallback: bool) -> dict[str, Any] | None:
        """The status of a step, or the newest; None where there is none and none was asked for."""
        steps = [*self.list()]
        if step is not None:
            if step not in steps:
                have = ", ".join(map(str, steps[-5:])) or "none"
                raise StatusError(f"{self._folder(step)} holds no {STATUS}. Steps that have one: {have}.")
            return self._read(step)
        while steps:
            newest = steps.pop()
            try:
                return self._read(newest)
            except StatusError as error:
                if not fallback or not steps:
                    raise
                logger.warning("%s Going back to step %d.", error, steps[-1])
        return None

    def _read(self, step: int) -> dict[str, Any]:
        """A status that is whole and ours."""
        url = f"{self._folder(step)}/{STATUS}"
        data = objects.get(url, **self._access)
        remedy = "Resume from another step (resume(loader, step=...)), or with fallback=True from the last good one."
        try:
            value = json.loads(data or b"")
        except ValueError:
            raise StatusError(f"{url} is torn: {len(data or b'')} bytes that are no JSON. {remedy}") from None
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

    def _difference(self, value: dict[str, Any], shards: ShardList) -> str:
        """What has changed in the data since, by name; "" where nothing has."""
        if value["shards"]["digest"] == shards.digest:
            return ""
        data = objects.get(f"{self._url}/{value['shards']['list']}", **self._access)
        if data is None:
            return "the list of shards then is not there any more"
        then, now = ({s.url: s for s in each} for each in (ShardList.from_bytes(data), shards.without_credentials()))
        parts = {
            "added": sorted(now.keys() - then.keys()),
            "removed": sorted(then.keys() - now.keys()),
            "changed": sorted(url for url in now.keys() & then.keys() if now[url] != then[url]),
        }
        return "; ".join(
            f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
            for what, names in parts.items()
            if names
        )


def _joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state out of those of all ranks, which must stand at the same place."""
    streamed = states[0]["plan"]["kind"] == "streamed"
    if streamed:
        epoch = min(state["epoch"] for state in states)
        states = [_in_epoch(state, epoch) for state in states]
    first = states[0]
    same = ("version", "run", "epoch", "plan", "shards") if streamed else tuple(first)
    for rank, state in enumerate(states):
        for name in same:
            if state[name] != first[name]:
                raise GroupError(
                    f"Ranks stand at different places: {name} is {first[name]!r} on rank 0 and {state[name]!r} on "
                    f"rank {rank}. Save after the same number of batches on every rank."
                )
    joined = dict(first)
    if streamed:
        joined["lanes"] = {rank: lanes for state in states for rank, lanes in state["lanes"].items()}
        joined["step"] = max(state["step"] for state in states)
    return joined


def _in_epoch(state: dict[str, Any], epoch: int) -> dict[str, Any]:
    """A rank that has just ended an epoch which others are still in: as seen from there, all its lanes have ended."""
    if state["epoch"] != epoch + 1 or any(lanes["k"] for lanes in state["lanes"].values()):
        return state
    ended = list(range(state["plan"]["columns"]))
    lanes = {rank: {**lanes, "ended": ended} for rank, lanes in state["lanes"].items()}
    return {**state, "epoch": epoch, "lanes": lanes}


def _checksum(value: dict[str, Any]) -> str:
    content = {name: item for name, item in value.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
