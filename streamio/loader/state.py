"""A loader's place in a run as JSON-ready values, and the check that a state fits the data and options at hand.

Says what was delivered, never what was read ahead; holds no counters, so that all ranks of an indexed run
write the same.
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamio.checks import names
from streamio.errors import StatusError
from streamio.loader.mixed_spec import MixedSpec
from streamio.loader.spec import Start
from streamio.plan import BegunWindow, Cursor, Generation, Grid, Place, Segment, StreamedRest

if TYPE_CHECKING:
    from streamio.loader.spec import Spec

logger = logging.getLogger(__name__)

VERSION = 1

#: Grids of an epoch that a state lists one by one; more are compressed, so that a state stays small.
LISTED = 32

#: Plan inputs that a caller may let differ; the loader's own value holds then.
_OPTIONS = ("seed", "shuffle", "window", "end", "drop_last", "on_drop", "filters", "max_records", "mixture")
#: Of these, and beside the data, what the order of an epoch follows from.
_ORDER = ("seed", "shuffle", "window", "filters", "max_records")
#: Everything that `allow=` may name.
ALLOWABLE = ("data", *_OPTIONS)


@dataclass(frozen=True)
class State:
    """A place in a run.

    Attributes:
        run: Name of the run, random, the same over all its resumes.
        step: Batches delivered since the run began, over all epochs.
        start: Where the next batch comes from.
        plan: The plan's inputs, see `plan_inputs`; empty where nothing had been settled yet.
        digest: Digest of the shard list; "" likewise.
        shards: Number of shards.
        rank: The data-parallel rank whose lanes `start` holds (streamed).
        ks: Where ranks stand apart (`end="exact"`): each one's `k`, in their order; else empty.
        lanes: What the state holds of the lanes of each rank (streamed).
        left_out: URLs of shards that are left out from here on.
    """

    run: str
    step: int
    start: Start
    plan: dict[str, Any]
    digest: str
    shards: int
    rank: int
    ks: tuple[int, ...] = ()
    lanes: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values."""
        plan, start = self.plan, self.start
        value: dict[str, Any] = {
            "version": VERSION,
            "run": self.run,
            "step": self.step,
            "epoch": start.epoch,
            "k": start.k + sum(generation.k for generation in start.past),
            "plan": plan,
            "shards": {"digest": self.digest, "count": self.shards},
            "generations": _chain_to_json([*start.past, *([Generation(_grid(plan), (start.k,))] if plan else [])]),
        }
        if start.turn:
            value["turn"] = start.turn
        if self.left_out:
            value["left_out"] = list(self.left_out)
        if plan.get("kind") == "streamed":
            value["lanes"] = {str(self.rank): {**lanes_to_json(start), "k": start.k, "step": self.step}}
            if start.rest is not None:
                value["rest"] = rest_to_json(start.rest)
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any], rank: int) -> State:
        """The state that `to_json` gave, with the lanes of one rank.

        Raises:
            StatusError: It is of a newer version, or not a state.
        """
        version = value.get("version") if isinstance(value, dict) else None
        if not isinstance(version, int):
            raise StatusError("This is no state of a streamio loader: it has no version.")
        if version > VERSION:
            raise StatusError(
                f"The state is of version {version}; this streamio reads up to {VERSION}. Install a newer one."
            )
        try:
            own = value.get("ranks", {}).get(str(rank), value)  # ranks may have come to their ends apart
            plan, step = dict(value["plan"]), int(own["step"])
            past = _chain_from_json(value["generations"])[:-1]
            before = sum(each.k for each in past)
            start = Start(int(value["epoch"]), int(own["k"]) - before, past=past, turn=int(value.get("turn", 0)))
            ranks = sorted(value.get("ranks", {}).items(), key=lambda item: int(item[0]))
            ks = tuple(int(each["k"]) - before for _, each in ranks)
            if plan and start.begun:
                start = replace(start, grid=_grid(plan))
            lanes: dict[str, Any] = {}
            if plan.get("kind") == "streamed":
                lanes = value["lanes"]
                start, step = _streamed_start(start, plan, value, rank, step)
            shards = value["shards"]
            count, left_out = int(shards["count"]), tuple(map(str, value.get("left_out", ())))
            return cls(value["run"], step, start, plan, shards["digest"], count, rank, ks, lanes, left_out)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, StatusError):
                raise
            raise StatusError(f"The state is damaged: {type(error).__name__}: {error}.") from error


def _grid(plan: Mapping[str, Any]) -> Grid:
    return Grid(int(plan["rows"]), int(plan["columns"]), int(plan["batch"]))


def _chain_to_json(chain: Sequence[Generation]) -> list[Any] | str:
    """Grids and how much was delivered under each, as lists; compressed where there are many."""
    value = [[*astuple(each.grid), each.ks[0] if len(each.ks) == 1 else list(each.ks)] for each in chain]
    if len(value) <= LISTED:
        return value
    return base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode())).decode()


def _chain_from_json(value: list[Any] | str) -> tuple[Generation, ...]:
    listed = json.loads(zlib.decompress(base64.b64decode(value))) if isinstance(value, str) else value
    chain = ((grid, ks if isinstance(ks, list) else [ks]) for *grid, ks in listed)
    return tuple(Generation(Grid(*map(int, grid)), tuple(map(int, ks))) for grid, ks in chain)


def plan_inputs(spec: Spec | MixedSpec) -> dict[str, Any]:
    """What a plan is a function of, beside the shards and the place."""
    if isinstance(spec, MixedSpec):
        return spec.plan_inputs()
    return {
        "kind": "indexed" if spec.indexed else "streamed",
        "rows": spec.grid.rows,
        "columns": spec.grid.columns,
        "batch": spec.grid.batch,
        "seed": spec.seed,
        "shuffle": spec.shuffle,
        "window": spec.window,
        "end": spec.end,
        "drop_last": spec.drop_last,
        "on_drop": spec.on_drop,
        "filters": spec.filters,
        "max_records": spec.max_records,
    }


def lanes_to_json(start: Start) -> dict[str, Any]:
    """Where the lanes of one rank stand."""
    cursors = [_cursor_to_json(cursor) for cursor in start.cursors]
    return {"cursors": cursors, "ended": sorted(start.ended), "next": start.column}


def lanes_from_json(start: Start, lanes: dict[str, Any]) -> Start:
    """The place with the lanes that `lanes_to_json` gave."""
    cursors = tuple(cursor_from_json(value) for value in lanes["cursors"])
    return replace(start, cursors=cursors, ended=frozenset(map(int, lanes["ended"])), column=int(lanes["next"]))


def cursor_from_json(value: list[Any]) -> Cursor:
    """A lane's cursor, as `lanes_to_json` tells it."""
    offset, *places = value
    more = places.pop() if places and isinstance(places[-1], dict) else {}
    return Cursor(
        tuple(Place(*map(int, place)) for place in places),
        int(offset),
        tuple(Place(*map(int, place)) for place in more.get("ends", ())),
        tuple(Segment(*map(int, segment)) for segment in more.get("segments", ())),
        int(more.get("rests", 0)),
    )


def _cursor_to_json(cursor: Cursor) -> list[Any]:
    value: list[Any] = [cursor.offset, *(list(astuple(place)) for place in cursor.places)]
    more: dict[str, Any] = {}
    if cursor.segments:
        more["ends"] = [list(astuple(place)) for place in cursor.ends]
        more["segments"] = [list(astuple(segment)) for segment in cursor.segments]
    if cursor.rests:
        more["rests"] = cursor.rests
    return [*value, more] if more else value


def rest_to_json(rest: StreamedRest) -> dict[str, Any]:
    """What is left of a streamed pass; whole splits as compressed numbers, for there may be many."""
    begun = rest.entries[:, 1] > 0
    whole = rest.entries[~begun, 0].astype("<i4").tobytes()
    return {
        "turn": rest.turn,
        "windows": [
            {"key": list(w.key), "offset": w.offset, "segments": [list(astuple(s)) for s in w.segments]}
            for w in rest.windows
        ],
        "begun": rest.entries[begun].tolist(),
        "whole": base64.b64encode(zlib.compress(whole)).decode(),
    }


def rest_from_json(value: dict[str, Any]) -> StreamedRest:
    """What `rest_to_json` gave."""
    whole = np.frombuffer(zlib.decompress(base64.b64decode(value["whole"])), "<i4").astype(np.int64)
    begun = np.array(value["begun"], np.int64).reshape(-1, 3)
    entries = np.stack((whole, np.zeros_like(whole), np.full_like(whole, -1)), axis=1)
    windows = tuple(
        BegunWindow(
            tuple(part if isinstance(part, str) else int(part) for part in window["key"]),
            int(window["offset"]),
            tuple(Segment(*map(int, segment)) for segment in window["segments"]),
        )
        for window in value["windows"]
    )
    return StreamedRest(windows, np.concatenate((begun, entries)), int(value["turn"]))


def _streamed_start(
    start: Start, plan: dict[str, Any], value: dict[str, Any], rank: int, step: int
) -> tuple[Start, int]:
    """Where the lanes of one rank stand, and its step; without lanes where the state holds none of its own."""
    rest = value.get("rest")
    begun = rest is not None or any(each["k"] or each["ended"] for each in value["lanes"].values())
    if not begun:
        return Start(start.epoch), step  # whoever shared the lanes
    start = replace(start, grid=_grid(plan), rest=None if rest is None else rest_from_json(rest))
    lanes = value["lanes"].get(str(rank))
    if lanes is None:
        return start, step
    return lanes_from_json(replace(start, k=int(lanes["k"])), lanes), int(lanes["step"])


def check_allowed(allow: Collection[str]) -> None:
    """Raise ValueError where `allow` names what can't be allowed, TypeError where it is no list of names."""
    unknown = set(names("allow", allow, empty=True)) - set(ALLOWABLE)
    if unknown:
        raise ValueError(f"allow={sorted(unknown)} is not known; it may hold {', '.join(ALLOWABLE)}.")


@dataclass(frozen=True)
class Loaded:
    """A state that is to be taken up, before it is compared with the data and options at hand.

    Attributes:
        state: The state.
        allow: Names of what may differ.
        difference: What is known to have changed in the data since, by name.
    """

    state: State
    allow: frozenset[str]
    difference: str

    @property
    def window(self) -> Any:
        """The window that holds on in the run; of a mixture those of its sources by name."""
        return None if "window" in self.allow else self.state.plan.get("window")

    def check(self, spec: Spec | MixedSpec, window: int | None, digest: str) -> None:
        """Compare it with what the loader would do now.

        Args:
            spec: What that is.
            window: The window that the user asked for by number.
            digest: Digest of the shard list now.

        Raises:
            StatusError: It does not fit.
        """
        if window is not None and not isinstance(spec, MixedSpec):
            spec = replace(spec, window=window)
        found = self._differences(plan_inputs(spec), spec, digest)
        if found:
            raise StatusError(f"The saved place does not fit this loader: {'; '.join(found)}.")
        if self.state.plan and self.state.start.begun and (others := self._reordered(plan_inputs(spec), digest)):
            logger.warning(
                "The epoch goes on with other %s: of its records some may come twice and others not at all. A whole "
                'epoch is exact again. To add data, on_change="next_epoch" of the data set keeps the epoch as it is.',
                " and ".join(others),
            )

    def _reordered(self, now: dict[str, Any], digest: str) -> list[str]:
        """What differs of that which the order follows from."""
        names = [name for name in _ORDER if self.state.plan.get(name) != now.get(name)]
        return names if self.state.digest == digest else ["data", *names]

    def _differences(self, now: dict[str, Any], spec: Spec | MixedSpec, digest: str) -> list[str]:
        state = self.state
        if not state.plan:
            return []
        if (state.plan.get("kind") == "mixture") is not isinstance(spec, MixedSpec):
            return ["a mixture's place and a single data set's do not go together"]
        found = []
        if state.plan.get("kind") != now["kind"]:
            return [
                f"the kind of plan was {state.plan.get('kind')} and is {now['kind']} now: an index was made since, is "
                "not found any more, or is stale (`streamio index` renews it; index= of the data set chooses)"
            ]
        found += [
            f"{name} was {state.plan.get(name)!r} and is {now.get(name)!r} now (allow=[{name!r}] takes the new one)"
            for name in _OPTIONS
            if name not in self.allow and state.plan.get(name) != now.get(name)
        ]
        same = state.digest == digest and state.plan.get("sources") == now.get("sources")
        if "data" not in self.allow and not same:
            what = self.difference or f"{state.shards} shards then, {len(spec.shards)} now, or other versions of them"
            found.append(f"the data are not the same: {what} (allow=['data'] goes on all the same)")
        return found
