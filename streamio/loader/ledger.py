"""What a loader delivered and dropped, over a run's resumes, and whether the run still bears its drops."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from streamio.errors import TooManyDropsError
from streamio.observe.drops import Drop, DropLog
from streamio.observe.stats import IoCounts, Stats

if TYPE_CHECKING:
    from streamio.loader.server import Answer

#: Records that a fraction given as `max_drops` is taken of at least, so that one bad record at the start stops nothing.
FRACTION_FLOOR = 1000

#: Share of refilled records at which a warning says that something else was meant.
REFILLS_TOLD = 0.1

logger = logging.getLogger(__name__)


class Ledger:
    """Counts of one rank since this process took up the run, and of all ranks before that.

    Args:
        limit: `max_drops`: a count, a fraction, or None.
        tell: Called with the first drop of each place.

    Attributes:
        drops: Drops of this rank since the run was taken up.
        drops_before: Drops of all ranks before.
        delivered_before: Records that all ranks had been given before.
    """

    def __init__(self, limit: int | float | None, tell: Callable[[Drop], None]) -> None:
        self._limit = limit
        self._tell = tell
        self._stats = Stats()
        self._earlier: Counter[str] = Counter()  # drops of this process before the run was taken up (again)
        self._delivered_earlier = 0
        self._refills_told = False
        self.drops = DropLog()
        self.drops_before = DropLog()
        self.delivered_before = 0

    @property
    def delivered(self) -> int:
        """Records that this rank was given since the run was taken up."""
        return self._stats.records - self._delivered_earlier

    def stats(self) -> Stats:
        """The counts as they are now."""
        return replace(self._stats, dropped=dict(self._earlier + self.drops.reasons), sources=dict(self._stats.sources))

    def waited(self, seconds: float) -> None:
        """Count waiting time."""
        self._stats.wait_seconds += seconds

    def restarted(self) -> None:
        """Count that the workers are started anew."""
        self._stats.worker_restarts += 1

    def add(self, answer: Answer) -> None:
        """Count what was delivered.

        Raises:
            TooManyDropsError: The run does not bear its drops.
        """
        stats = self._stats
        stats.records += answer.records
        stats.batches += bool(answer.records)
        stats.padded += answer.padded
        stats.refilled += answer.refilled
        for source, records in answer.sources.items():
            stats.sources[source] = stats.sources.get(source, 0) + records
        self.add_io(answer.io)
        if stats.refilled > REFILLS_TOLD * stats.records > REFILLS_TOLD * FRACTION_FLOOR and not self._refills_told:
            self._refills_told = True
            logger.warning(
                "%d of %d records stand in for dropped ones: they are seen twice or more. To filter records, use "
                'end="exact", or on_drop="short" with larger batches; to bear fewer drops, max_drops.',
                stats.refilled,
                stats.records,
            )
        self.add_drops(answer.drops)

    def add_io(self, io: IoCounts) -> None:
        """Count what storage did beside the batches."""
        self._stats.requests += io.requests
        self._stats.bytes_read += io.bytes_read
        self._stats.bytes_needed += io.bytes_needed
        self._stats.retries += io.retries

    def add_drops(self, drops: Iterable[Drop]) -> None:
        """Count drops, tell of new places, and check this rank's share of what the run bears."""
        before = self.drops.total
        drops = list(drops)
        self._stats.filtered += sum(drop.records for drop in drops if not drop.fault)
        for drop in self.drops.add(drop for drop in drops if drop.fault):
            self._tell(drop)
        if self.drops.total > before:
            self.check(self.drops_before.total + self.drops.total, self.delivered_before + self.delivered)

    def take_up(self, drops: DropLog, delivered: int) -> None:
        """Note what all ranks had dropped and delivered where the run is taken up; what came after that counts anew."""
        self.drops_before, self.delivered_before = drops, delivered
        self._earlier += self.drops.reasons
        self._delivered_earlier = self._stats.records
        self.drops = DropLog()

    def check(self, dropped: int, delivered: int) -> None:
        """Stop the run where more was dropped than `max_drops` bears.

        Raises:
            TooManyDropsError: It was.
        """
        limit = self._limit
        if limit is None:
            return
        most = limit * max(FRACTION_FLOOR, dropped + delivered) if isinstance(limit, float) else limit
        if dropped > most:
            worst = self.drops.worst() or self.drops_before.worst()
            raise TooManyDropsError(
                f"{dropped} records were dropped and {delivered} delivered: more drops than max_drops={limit} bears. "
                f"The worst places: {worst}. Mend or remove these shards, or raise max_drops."
            )
