"""Checkpoints: a loader's status in object storage, beside the model's files of the same step.

One small JSON object a step, written by one rank with a single PUT; the list of shards is written once. No pickle.
"""

from __future__ import annotations

import base64
import builtins
import json
import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from streamio import status
from streamio.checks import kind, storage, whole_or_none
from streamio.errors import GroupError, StatusError
from streamio.later import Later
from streamio.loader.state import State
from streamio.observe.drops import Drop, DropLog
from streamio.storage import objects
from streamio.storage.retry import Retry
from streamio.storage.shards import ShardList
from streamio.storage.urls import normalise
from streamio.together import led, shared

if TYPE_CHECKING:
    from streamio.group import Group
    from streamio.loader.dataloader import DataLoader

logger = logging.getLogger(__name__)

STATUS = "streamio.json"
DROPS = "streamio-drops.jsonl"
SUPERSEDED = "streamio.superseded.json"


class Checkpoints:
    """The statuses below one folder: `<url>/step-00001000/streamio.json`, and the drop report beside each.

    Args:
        url: The trainer's own checkpoint folder; any URL that fsspec writes.
        storage_options: Passed to fsspec.
        keep: Statuses that stay; older ones are removed after a save, our own objects only. None keeps all.
        retry: How storage calls are retried.

    Raises:
        TypeError: An option of a wrong type, named.
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
        kind("retry", retry, Retry, "a streamio.Retry")
        self._url = normalise(url).rstrip("/")
        self._access: dict[str, Any] = {"storage_options": storage(storage_options), "retry": retry or Retry()}
        self._keep = whole_or_none("keep", keep, 1)
        self._later = Later("streamio-save")
        self._group: Group | None = None

    def save(self, loader: DataLoader, step: int | None = None, *, wait: bool = True) -> str:
        """Write the status behind the last batch delivered. All ranks call it together.

        Args:
            loader: The loader.
            step: The trainer's number for it. Default: `loader.step`.
            wait: Whether to return when it is written. Else a thread writes it, behind those before; what goes wrong
                is logged, and raised on all ranks by the next `save`, `resume` or `wait`.

        Returns:
            URL of the status.

        Raises:
            GroupError: A rank did not come, or ranks stand at different places.
            TooManyDropsError: All ranks together dropped more than `max_drops`.
            StreamioError: It can't be written; or an earlier one could not be: nothing of this one was done then.
        """
        step = whole_or_none("step", step, 0)
        if not hasattr(loader, "ledger"):
            raise TypeError(
                f"loader is a {type(loader).__name__}; Checkpoints keeps a streamio.DataLoader's place. A packer's "
                "state_dict goes into the trainer's own checkpoint, one of each rank (docs/mixtures.md)."
            )
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
            "delivered": loader.ledger.delivered,
        }

        def tell() -> bytes:
            self._later.check()
            return json.dumps(mine).encode()

        self._group = group
        ranks = [json.loads(part) for part in shared(group, tell, "saving the status")]
        value = status.join([rank["state"] for rank in ranks], loader.steps_of)
        drops = DropLog()
        drops.merge(loader.ledger.drops_before)
        for rank in ranks:
            drops.merge(DropLog.from_json(rank["drops"]))
        delivered = loader.ledger.delivered_before + sum(rank["delivered"] for rank in ranks)
        loader.ledger.check(drops.total, delivered)
        folder = self._folder(value["step"] if step is None else step)
        value["drops"] = {"reasons": dict(drops.reasons), "delivered": delivered}
        url = f"{folder}/{STATUS}"
        writes = topology.rank == 0 and group.leads
        write = partial(self._write, folder, value, drops, loader.shards)

        def write_now() -> bytes:
            self._later.finish()
            if writes:
                write()
            return b""

        if wait:
            led(group, write_now, "writing the status")
        elif writes:
            self._later.submit(f"Writing {url}", write)
        return url

    def wait(self) -> None:
        """Wait until all that was saved with `wait=False` is written. All ranks call it together.

        Raises:
            StreamioError: A status could not be written.
        """

        def finish() -> bytes:
            self._later.finish()
            return b""

        if self._group is None:
            finish()
        else:
            led(self._group, finish, "finishing the writes")

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
                `"end"`, `"drop_last"`, `"on_drop"`, `"filters"`, `"max_records"`, `"mixture"`.
            fallback: Go to the last good status where the newest is torn or damaged.

        Returns:
            The step; None where there is no status yet, so that this is a first start.

        Raises:
            StatusError: The status can't be used, with the reason.
            ValueError: Several ranks without a process group, and no step told.
        """
        step = whole_or_none("step", step, 0)
        settled, group = loader.dataset.prepare(), loader.dataset.group
        if group.alone and settled.topology.world_size > 1 and step is None:
            raise ValueError(
                f"Without a process group {settled.topology.world_size} ranks can't agree on a status: tell "
                "resume(loader, step=...), "
                f"or call torch.distributed.init_process_group first."
            )

        def choose() -> bytes:
            self._later.finish()
            value = self._choose(step, fallback)
            if value is None:
                return b""
            told, data, then = self._read_drops(value["saved_as"]), "", None
            if value["shards"]["digest"] != settled.shards.digest:
                then = objects.get(f"{self._url}/{value['shards']['list']}", **self._access)
                data = _difference(then, settled.shards)
            goes_on = status.begun(value) and getattr(loader.dataset, "on_change", "error") != "error"
            shards = base64.b64encode(then).decode() if goes_on and then is not None else None
            return json.dumps({"value": value, "places": told, "data": data, "shards": shards}).encode()

        chosen = led(group, choose, "choosing a status")
        if not chosen:
            return None
        found = json.loads(chosen)
        value = found["value"]
        state = State.from_json(value, settled.topology.rank)
        then = found["shards"]
        shards = None if then is None else ShardList.from_bytes(base64.b64decode(then))
        loader.adopt(state, allow, found["data"], shards)
        reasons, delivered = value["drops"]["reasons"], value["drops"]["delivered"]
        loader.ledger.take_up(DropLog.from_json({"reasons": reasons, "places": found["places"]}), delivered)
        logger.info("Resumed from step %d: epoch %d, batch %d.", value["saved_as"], state.start.epoch, state.start.k)
        return int(value["saved_as"])

    def list(self) -> Sequence[int]:
        """Steps that have a status, rising."""
        return [step for step in self._steps() if self._has(step)]

    def latest(self) -> int | None:
        """The newest step that has a status; None where none has."""
        for step in reversed(self._steps()):
            if self._has(step):
                return step
        return None

    def _folder(self, step: int) -> str:
        return f"{self._url}/step-{step:08d}"

    def _has(self, step: int) -> bool:
        return objects.exists(f"{self._folder(step)}/{STATUS}", **self._access)

    def _steps(self) -> Sequence[int]:
        """Steps that have a folder, whether of ours or only of the trainer."""
        names = objects.ls(self._url, **self._access)
        return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d{8,})", name)))

    def _write(self, folder: str, value: dict[str, Any], drops: DropLog, shards: ShardList) -> None:
        """The status last: where it lies, what it speaks of lies there too."""
        name = f"streamio-shards-{shards.digest[:16]}.arrow"
        if not objects.exists(f"{self._url}/{name}", **self._access):
            objects.put(f"{self._url}/{name}", shards.without_credentials().to_bytes(), **self._access)
        report = "".join(json.dumps(asdict(drop)) + "\n" for drop in drops.places())
        if report:
            objects.put(f"{folder}/{DROPS}", report.encode(), **self._access)
        else:
            objects.remove(f"{folder}/{DROPS}", **self._access)  # of an earlier save of this step
        value["shards"]["list"] = name
        value["saved_as"] = int(folder.rpartition("-")[2])
        value["saved_at"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        objects.put(f"{folder}/{STATUS}", status.seal(value), **self._access)
        self._tidy(value["saved_as"])

    def _tidy(self, saved: int) -> None:
        """Set aside statuses that a run which went back has left ahead of it, and remove those beyond `keep`."""
        steps = self._steps()
        for step in (later for later in steps if later > saved):
            # The newest status must be of the line that goes on: a crash would resume the abandoned one.
            data = objects.get(f"{self._folder(step)}/{STATUS}", **self._access)
            if data is not None:
                logger.warning("The status of step %d is set aside: the run went back, and is at %d now.", step, saved)
                objects.put(f"{self._folder(step)}/{SUPERSEDED}", data, **self._access)
                objects.remove(f"{self._folder(step)}/{STATUS}", **self._access)
        if self._keep is not None:
            kept = [step for step in steps if step <= saved and self._has(step)]
            for step in kept[: -self._keep]:
                for own in (STATUS, DROPS):
                    objects.remove(f"{self._folder(step)}/{own}", **self._access)

    def _choose(self, step: int | None, fallback: bool) -> dict[str, Any] | None:
        """The status of a step, or the newest; None where there is none and none was asked for."""
        steps = [*self.list()]
        if step is not None:
            if step not in steps:
                have = ", ".join(map(str, steps[-5:])) or "none"
                raise StatusError(f"{self._folder(step)} holds no {STATUS}. The newest that have one: {have}.")
            return self._read(step)
        while steps:
            newest = steps.pop()
            try:
                return self._read(newest)
            except StatusError as error:
                if not fallback:
                    raise
                if not steps:
                    raise StatusError(f"{error} Of all statuses in {self._url} none is good.") from None
                logger.warning("%s Going back to step %d.", error, steps[-1])
        return None

    def _read(self, step: int) -> dict[str, Any]:
        """A status that is whole and ours."""
        url = f"{self._folder(step)}/{STATUS}"
        return status.opened(objects.get(url, **self._access) or b"", url)

    def _read_drops(self, step: int) -> builtins.list[dict[str, Any]]:
        """The drop report beside a status; what can't be read of it is left out, for the totals are in the status."""
        url = f"{self._folder(step)}/{DROPS}"
        places: builtins.list[dict[str, Any]] = []
        for line in (objects.get(url, **self._access) or b"").splitlines():
            try:
                places.append(asdict(Drop(**json.loads(line))))
            except (ValueError, TypeError, RecursionError) as error:  # noqa: PERF203 - a report is short
                logger.warning("%s: a line can't be read (%s) and is left out.", url, error)
        return places


def _difference(then: bytes | None, shards: ShardList) -> str:
    """What has changed in the data, by name.

    Args:
        then: The list of shards as it was stored; None where it is not there any more.
        shards: Those that are there now.
    """
    if then is None:
        return "the list of shards then is not there any more"
    try:
        listed = ShardList.from_bytes(then)
    except (ValueError, OSError, KeyError) as error:  # Arrow's own are among these
        return f"the list of shards then can't be read ({type(error).__name__})"
    before, now = ({s.url: s for s in each} for each in (listed, shards.without_credentials()))
    parts = {
        "added": sorted(now.keys() - before.keys()),
        "removed": sorted(before.keys() - now.keys()),
        "changed": sorted(url for url in now.keys() & before.keys() if now[url] != before[url]),
    }
    return "; ".join(
        f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in parts.items()
        if names
    )
