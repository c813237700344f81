"""A loader's place in a run as JSON-ready values, and the check that a state fits the data and options at hand.

Says what was delivered, never what was read ahead; holds no counters, so that all ranks of an indexed run
write the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from streamio.errors import StatusError
from streamio.loader.spec import Start
from streamio.plan import Cursor, Place

if TYPE_CHECKING:
    from streamio.loader.spec import Spec

VERSION = 1

#: Plan inputs that decide which slots a place stands for, with what to call them.
_TOPOLOGY = {
    "kind": "the kind of plan",
    "rows": "the number of ranks (rows of lanes)",
    "columns": "num_workers (columns of lanes; 0 counts as 1)",
    "batch": "the global batch size",
}
#: Plan inputs that a caller may let differ; the loader's own value holds then.
_OPTIONS = ("seed", "shuffle", "window", "end", "drop_last", "on_drop", "filters")
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
    """

    run: str
    step: int
    start: Start
    plan: dict[str, Any]
    digest: str
    shards: int
    rank: int

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values."""
        plan, start = self.plan, self.start
        value: dict[str, Any] = {
            "version": VERSION,
            "run": self.run,
            "step": self.step,
            "epoch": start.epoch,
            "k": start.k,
            "plan": plan,
            "shards": {"digest": self.digest, "count": self.shards},
            "generations": [[plan["rows"], plan["columns"], plan["batch"], start.k]] if plan else [],
        }
        if plan.get("kind") == "streamed":
            value["lanes"] = {str(self.rank): {**lanes_to_json(start), "k": start.k, "step": self.step}}
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
            start, step = Start(int(value["epoch"]), int(own["k"])), int(own["step"])
            plan = dict(value["plan"])
            if plan.get("kind") == "streamed":
                lanes = value["lanes"].get(str(rank))
                if not any(each["k"] or each["ended"] for each in value["lanes"].values()):
                    lanes = {"k": 0, "step": step, "cursors": [], "ended": [], "next": 0}  # whoever shared them
                if lanes is None:
                    raise StatusError(
                        f"The state holds the lanes of ranks {', '.join(value['lanes'])} but not those of rank {rank}. "
                        f"A streamed data set needs each rank's own state, or `Checkpoints`, which gathers them."
                    )
                start, step = lanes_from_json(replace(start, k=int(lanes["k"])), lanes), int(lanes["step"])
            shards = value["shards"]
            return cls(value["run"], step, start, plan, shards["digest"], int(shards["count"]), rank)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, StatusError):
                raise
            raise StatusError(f"The state is damaged: {type(error).__name__}: {error}.") from error


def plan_inputs(spec: Spec) -> dict[str, Any]:
    """What a plan is a function of, beside the shards and the place."""
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
    }


def lanes_to_json(start: Start) -> dict[str, Any]:
    """Where the lanes of one rank stand."""
    cursors = [[c.offset, *(list(astuple(place)) for place in c.places)] for c in start.cursors]
    return {"cursors": cursors, "ended": sorted(start.ended), "next": start.column}


def lanes_from_json(start: Start, lanes: dict[str, Any]) -> Start:
    """The place with the lanes that `lanes_to_json` gave."""
    cursors = tuple(
        Cursor(tuple(Place(*map(int, place)) for place in places), int(offset)) for offset, *places in lanes["cursors"]
    )
    return replace(start, cursors=cursors, ended=frozenset(map(int, lanes["ended"])), column=int(lanes["next"]))


def check_allowed(allow: Collection[str]) -> None:
    """Raise ValueError where `allow` names what can't be allowed."""
    unknown = set(allow) - set(ALLOWABLE)
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
    def window(self) -> int | None:
        """The window that holds on in the run."""
        return None if "window" in self.allow else self.state.plan.get("window")

    def check(self, spec: Spec, window: int | None, digest: str) -> None:
        """Compare it with what the loader would do now.

        Args:
            spec: What that is.
            window: The window that the user asked for by number.
            digest: Digest of the shard list now.

        Raises:
            StatusError: It does not fit.
        """
        found = self._differences(plan_inputs(spec if window is None else replace(spec, window=window)), spec, digest)
        if found:
            raise StatusError(f"The saved place does not fit this loader: {'; '.join(found)}.")

    def _differences(self, now: dict[str, Any], spec: Spec, digest: str) -> list[str]:
        state = self.state
        if not state.plan:
            return []
        # An epoch that has not begun may be dealt to any topology.
        fixed = _TOPOLOGY if state.start.begun else {"kind": _TOPOLOGY["kind"]}
        found = [
            f"{text} was {state.plan.get(name)} and is {now[name]} now"
            for name, text in fixed.items()
            if state.plan.get(name) != now[name]
        ]
        if found:
            found[-1] += " (another topology or batch size within an epoch is not supported yet)"
        found += [
            f"{name} was {state.plan.get(name)!r} and is {now[name]!r} now (allow=[{name!r}] takes the new one)"
            for name in _OPTIONS
            if name not in self.allow and state.plan.get(name) != now[name]
        ]
        if "data" not in self.allow and state.digest != digest:
            what = self.difference or f"{state.shards} shards then, {len(spec.shards)} now, or other versions of them"
            found.append(f"the data are not the same: {what} (allow=['data'] goes on all the same)")
        return found
