"""Reads the ranks' own logs of record ids, and tells what was trained on along the surviving line of steps.

A life is one start of the training, by as many ranks as there were then. One that resumes from step c leaves the later
steps of the lives before it without effect on the model: they are dead. The surviving line is what is left, steps 1 to
the end, once each.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Life:
    """One start of one rank: the step it resumed from, when, and (step, epoch, ids) of each step that it made."""

    resumed_at: int
    started: float = 0.0  # the same for all ranks of a life
    steps: list[tuple[int, int, list[Any]]] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.steps[-1][0] if self.steps else self.resumed_at


@dataclass
class Verdict:
    """Ids per epoch that do not stand in the surviving line exactly once, and what died with the kills.

    `batches` is a digest of the surviving line: equal where the same global batches came in the same order, whichever
    rank had a part of them.
    """

    lost: dict[int, list[Any]]
    repeated: dict[int, list[Any]]
    foreign: dict[int, list[Any]]
    dead: int
    batches: str

    @property
    def good(self) -> bool:
        return not (self.lost or self.repeated or self.foreign)


def read(path: Path) -> list[Life]:
    """The lives of one rank, in order."""
    lives: list[Life] = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut short by the kill: its ids count as never trained on
        if "resumed_at" in entry:
            lives.append(Life(entry["resumed_at"], entry.get("started", len(lives))))
        else:
            lives[-1].steps.append((entry["step"], entry["epoch"], entry["ids"]))
    return lives


def judge(ranks: Collection[list[Life]], ids: Collection[Any], epochs: int) -> Verdict:
    """Compare the surviving line of all ranks with the ids of the data set, epoch by epoch."""
    seen: dict[int, Counter[Any]] = {epoch: Counter() for epoch in range(epochs)}
    dead = 0
    line: dict[int, list[Any]] = {}
    resumed = {life.started: life.resumed_at for lives in ranks for life in lives}
    for lives in ranks:
        for life in lives:
            survives = min((step for started, step in resumed.items() if started > life.started), default=float("inf"))
            for step, epoch, step_ids in life.steps:
                if step <= survives:
                    seen.setdefault(epoch, Counter()).update(step_ids)
                    line.setdefault(step, []).extend(step_ids)
                else:
                    dead += len(step_ids)
    expected = set(ids)
    return Verdict(
        lost=_told({epoch: expected - count.keys() for epoch, count in seen.items()}),
        repeated=_told({epoch: [i for i, times in count.items() if times > 1] for epoch, count in seen.items()}),
        foreign=_told({epoch: count.keys() - expected for epoch, count in seen.items()}),
        dead=dead,
        batches=hashlib.sha256(json.dumps(sorted(line.items())).encode()).hexdigest()[:16],
    )


def _told(found: dict[int, Any]) -> dict[int, list[Any]]:
    return {epoch: sorted(ids) for epoch, ids in found.items() if ids}
