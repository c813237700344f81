"""Whether a loader goes on where a worker has died: counts deaths, tells of each, and says when it is enough.

Starts nothing by itself: the iterator does that, with what the loader gives it.
"""

from __future__ import annotations

import logging

from streamio.errors import WorkerError

logger = logging.getLogger(__name__)


class WorkerDiedError(WorkerError):
    """A worker was killed, or has ended by itself: another one can take its place."""


class Restarts:
    """Restarts of one iteration.

    Args:
        most: How often its workers may be started anew; 0 for never.

    Attributes:
        count: How often they were.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: int | None = None
        self._here = 0
        self.count = 0

    def note(self, death: WorkerDiedError, workers: int, step: int, epoch: int) -> None:
        """Note that all workers are to be started anew because of one.

        Args:
            death: Which one, and how it died.
            workers: How many are started.
            step: Batches delivered since the run began.
            epoch: The epoch.

        Raises:
            WorkerError: That has been done as often as it may.
        """
        self._here, self._last = self._here + 1 if step == self._last else 1, step
        if self.count >= self._most:
            raise WorkerError(f"{death}{self._tried(step)}") from None
        self.count += 1
        logger.warning(
            "%s All %d workers are started anew behind step %d (epoch %d): restart %d of at most %d in an epoch.",
            str(death), workers, step, epoch, self.count, self._most,
        )  # fmt: skip

    def _tried(self, step: int) -> str:
        """What has been done before it was given up."""
        if not self._most:
            return ""
        here = f"; what comes behind step {step} was tried {self._here} times" if self._here > 1 else ""
        return (
            f" It was tried {self._most + 1} times in this epoch (restart_workers={self._most}){here}. "
            "Does a record end the worker that reads it, or does memory run short?"
        )
