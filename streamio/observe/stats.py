"""Counters of a loader: what went through it, what storage did for it, and how long the training loop waited."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class IoCounts:
    """What storage did.

    Attributes:
        requests: Requests sent, retries included.
        bytes_read: Bytes received.
        bytes_needed: Bytes that the slots at hand take up in storage.
        retries: Requests that had to be sent again.
    """

    requests: int = 0
    bytes_read: int = 0
    bytes_needed: int = 0
    retries: int = 0

    @classmethod
    def of(cls, counters: Any) -> IoCounts:
        """From anything that has these attributes."""
        return cls(counters.requests, counters.bytes_read, counters.bytes_needed, counters.retries)

    def __add__(self, other: IoCounts) -> IoCounts:
        return IoCounts(*(a + b for a, b in zip(self._each(), other._each(), strict=True)))

    def __sub__(self, other: IoCounts) -> IoCounts:
        return IoCounts(*(a - b for a, b in zip(self._each(), other._each(), strict=True)))

    def _each(self) -> tuple[int, ...]:
        return self.requests, self.bytes_read, self.bytes_needed, self.retries  # `astuple` copies deeply


@dataclass
class Stats:
    """What a loader delivered, and at which cost. Counts belong to what was delivered, not to what was read ahead.

    Attributes:
        records: Records delivered, padding and refills included.
        batches: Batches delivered.
        padded: Records that stand where no slot was left (`end="even"`).
        refilled: Records that stand in for dropped ones.
        dropped: Slots dropped, by reason.
        filtered: Rows that were read and left out by `filters=`; these are not among `dropped`.
        sources: Records delivered of each source of a mixture, by name, refills included.
        requests: Storage requests, retries included.
        bytes_read: Bytes received from storage.
        bytes_needed: Bytes that the slots read so far take up in storage; `bytes_read / bytes_needed` is the read
            amplification: footers, what is read twice, and what was read ahead.
        retries: Requests that had to be sent again.
        wait_seconds: Time in which the consumer waited for a batch.
        worker_restarts: How often all workers were started anew because one had died.
    """

    records: int = 0
    batches: int = 0
    padded: int = 0
    refilled: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    filtered: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    bytes_read: int = 0
    bytes_needed: int = 0
    retries: int = 0
    wait_seconds: float = 0.0
    worker_restarts: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return asdict(self)

    def __add__(self, other: Stats) -> Stats:
        total = Stats()
        for item in fields(Stats):
            mine, others = getattr(self, item.name), getattr(other, item.name)
            added = (
                {name: mine.get(name, 0) + others.get(name, 0) for name in mine | others}
                if isinstance(mine, dict)
                else mine + others
            )
            setattr(total, item.name, added)
        return total
