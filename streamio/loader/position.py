"""Where a loader stands in its run: behind the last batch delivered, and where its next iterator begins.

Plain values: it knows neither data nor workers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from streamio.loader.spec import Start, checked_epoch

logger = logging.getLogger(__name__)


@dataclass
class Position:
    """A place in a run.

    Attributes:
        place: Behind the last batch of the iterator that runs, or ran last.
        run: Name of the run; None until it has one.
        step: Batches delivered since the run began, over all epochs.
        told: Where the next iterator begins, if somebody said so.
        loaded: Whether `told` came out of a state.
        left_out: URLs of shards that are left out from here on.
    """

    place: Start = field(default_factory=lambda: Start(0))
    run: str | None = None
    step: int = 0
    told: Start | None = None
    loaded: bool = False
    left_out: tuple[str, ...] = ()

    def choose(self, epoch: int, *, running: bool) -> None:
        """Let the next iterator begin an epoch, unless it is to go on within that one anyway.

        Args:
            epoch: The epoch.
            running: Whether an iterator still delivers from `place`.
        """
        epoch = checked_epoch(epoch)
        if self.loaded and self.told is not None:
            if self.told.epoch == epoch:
                return
            logger.warning(
                "set_epoch(%d) gives up the loaded place: epoch %d, batch %d. Loop over range(loader.epoch, ...) "
                "to go on from it.",
                epoch, self.told.epoch, self.told.k,
            )  # fmt: skip
        if running and epoch == self.place.epoch:
            return
        self.told, self.loaded = Start(epoch), False

    def now(self, *, running: bool) -> Start:
        """The place that a state tells: of the iterator that runs, else where the next one begins."""
        return self.place if running or self.told is None else self.told

    def load(self, start: Start, run: str | None, step: int) -> None:
        """Take up a place in a run."""
        self.place = self.told = start
        self.loaded = True
        self.run, self.step = run, step

    def go_on(self, start: Start) -> None:
        """The place that was loaded, as the running topology takes it up."""
        self.place = start
        if self.loaded:
            self.told = start

    def begin(self, default: Start) -> Start:
        """An iterator begins: where it was told, else at `default`."""
        self.place = replace(default if self.told is None else self.told, left_out=self.left_out)
        self.told, self.loaded = None, False
        return self.place
