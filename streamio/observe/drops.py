"""Drops: records or shards that could not be used, gathered by place and told as JSON lines.

Counts are exact; the list of places is bounded, and says so when it is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

#: Places that are kept by name; beyond them drops are only counted.
MAX_PLACES = 10_000

#: Reason and message of rows that `filters=` leaves out: no faults, and told apart from what a map calls so.
FILTERED, NO_MATCH = "filtered", "does not match filters="

#: The same for shards that `DataLoader.leave_out` leaves out.
LEFT_OUT = "left_out", "by DataLoader.leave_out"


@dataclass(frozen=True, slots=True)
class Drop:
    """One place whose records were dropped.

    Attributes:
        reason: A short word: `"json"`, `"corrupt"`, `"decode"`, or what a user's map gave.
        url: The shard.
        position: Where in it ("row group 3", "byte 4711", "sample 12"); "" for all of it.
        message: What is wrong, for people.
        records: Slots that fell out for it.
    """

    reason: str
    url: str
    position: str
    message: str
    records: int = 1

    @property
    def fault(self) -> bool:
        """Whether something is wrong there; what `filters=` or the user leaves out is as it is wanted."""
        return (self.reason, self.message) not in ((FILTERED, NO_MATCH), LEFT_OUT)


class DropLog:
    """Drops so far: totals by reason, and the places."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self._places: dict[tuple[str, str, str], Drop] = {}

    @property
    def total(self) -> int:
        """Dropped slots in all."""
        return sum(self.reasons.values())

    def add(self, drops: Iterable[Drop]) -> list[Drop]:
        """Count drops, joining those of one place; returns those of places that were not known yet."""
        new: list[Drop] = []
        for drop in drops:
            self.reasons[drop.reason] += drop.records
            key = (drop.reason, drop.url, drop.position)
            known = self._places.get(key)
            if known is not None:
                self._places[key] = replace(known, records=known.records + drop.records)
            elif len(self._places) < MAX_PLACES:
                self._places[key] = drop
                new.append(drop)
        return new

    def places(self) -> list[Drop]:
        """Places by name, those with the most records first."""
        return sorted(self._places.values(), key=lambda drop: (-drop.records, drop.url, drop.position))

    def worst(self, count: int = 5) -> str:
        """The shards with the most drops as text for people, each with its first place."""
        shards: dict[str, list[Drop]] = {}
        for drop in self._places.values():
            shards.setdefault(drop.url, []).append(drop)
        worst = sorted(shards.items(), key=lambda item: (-sum(drop.records for drop in item[1]), item[0]))[:count]
        return "; ".join(
            f"{url}: {sum(drop.records for drop in drops)}, the first"
            f"{f' at {drops[0].position}' if drops[0].position else ''} ({drops[0].reason}: {drops[0].message})"
            for url, drops in worst
        )

    def to_json(self) -> dict[str, object]:
        """Everything as JSON-ready values."""
        return {"reasons": dict(self.reasons), "places": [asdict(drop) for drop in self.places()]}

    @classmethod
    def from_json(cls, value: dict[str, object]) -> DropLog:
        """The log that `to_json` gave."""
        log = cls()
        log._merge(value)
        return log

    def merge(self, other: DropLog) -> None:
        """Count another log's drops as well."""
        self._merge(other.to_json())

    def _merge(self, value: dict[str, object]) -> None:
        reasons, places = value["reasons"], value["places"]
        assert isinstance(reasons, dict)
        assert isinstance(places, list)
        counted = Counter(self.reasons)
        self.add(Drop(**place) for place in places)
        self.reasons = counted + Counter(reasons)  # totals count, places may have been cut
