"""The base class that BAGEL-style pipelines subclass: who reads which paths, in which order, from where on.

It knows paths only: it reads nothing and talks to no other rank. That is the work of `StreamingDataset`.
"""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from torch.utils.data import IterableDataset, get_worker_info

from streamio.errors import TopologyError

Path: TypeAlias = "str | tuple[Any, ...]"
Remainder: TypeAlias = Literal["drop", "deal"]
Status: TypeAlias = Any


class DistributedIterableDataset(IterableDataset[Any]):
    """Deals paths to ranks and workers, keeps a status for each worker, and counts drops.

    A subclass sets `data_paths` (usually from `get_data_paths`), calls `set_epoch`, and in `__iter__` reads
    what `get_data_paths_per_worker` gives it, from `_get_worker_data_status` on.

    Args:
        dataset_name: Stands in log messages.
        local_rank: This process's data-parallel rank in the whole job, not on its node.
        world_size: Number of data-parallel ranks.
        num_workers: Workers that a rank is expected to have; a new status has that many places.
        remainder: What becomes of paths that a division by ranks or workers leaves over. `"drop"` leaves them
            out with a warning, and a rank or worker that would get nothing is an error; `"deal"` gives the
            first ranks and workers one more each, so that no path is lost.

    Attributes:
        rng: A `random.Random`, seeded anew by `set_epoch`.
        data_paths: All paths, the same on every rank: strings, or tuples. None until the subclass sets it.
        data_status: Where to start, a list with one status for each worker; None is the beginning.
        num_files_per_rank: How many paths this rank has.
        data_paths_per_rank: The paths of this rank in the order of the epoch.

    Raises:
        TopologyError: The rank is not one of the world's, or a number is negative.
        ValueError: An unknown `remainder`.
    """

    def __init__(
        self,
        dataset_name: str,
        local_rank: int = 0,
        world_size: int = 1,
        num_workers: int = 8,
        *,
        remainder: Remainder = "drop",
    ) -> None:
        super().__init__()
        if remainder not in ("drop", "deal"):
            raise ValueError(f"{dataset_name}: remainder={remainder!r} is not known: use 'drop' or 'deal'.")
        if not 0 <= local_rank < world_size:
            raise TopologyError(
                f"{dataset_name}: local_rank={local_rank} is not a rank of world_size={world_size}: "
                f"give the data-parallel rank in the whole job, 0 to world_size - 1."
            )
        if num_workers < 0:
            raise TopologyError(f"{dataset_name}: num_workers={num_workers} must not be negative.")
        self.dataset_name = dataset_name
        self.local_rank = local_rank
        self.world_size = world_size
        self.num_workers = num_workers
        self.remainder = remainder
        self.rng = random.Random(42)  # noqa: S311 - an order, not a secret
        self.data_paths: Sequence[Path] | None = None
        self.num_files_per_rank = 0
        self.data_paths_per_rank: list[Path] = []
        self._start_status: list[Status] | None = None
        self._reached_status: list[Status] | None = None
        self._drop_counters: dict[str, int] = {}

    def get_data_paths(self, *args: Any, **kwargs: Any) -> Sequence[Path]:
        """All paths of the data set, for `data_paths`. Subclasses write it, with any arguments they like."""
        raise NotImplementedError(f"{type(self).__name__} must define get_data_paths().")

    def __iter__(self) -> Iterator[Any]:
        """The records of this rank and worker. Subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__} must define __iter__().")

    # The order of paths

    def set_epoch(self, seed: int = 42) -> None:
        """Order the paths by `seed` and take this rank's contiguous block; without `data_paths`, do nothing.

        The order follows from the sorted paths and `random.Random(seed).shuffle` alone. Tuples sort by their
        first two fields.

        Raises:
            ValueError: There are no paths, they are neither all strings nor all tuples, or ranks get none.
        """
        if self.data_paths is None:
            return
        paths = _sorted_paths(self.dataset_name, self.data_paths)
        self.rng.seed(seed)
        self.rng.shuffle(paths)
        self.data_paths_per_rank = self._take_block(paths, self.local_rank, self.world_size, "rank")
        self.num_files_per_rank = len(self.data_paths_per_rank)

    def get_data_paths_per_worker(self) -> tuple[list[Any], int] | None:
        """The paths that the calling process reads, and its worker's number.

        Outside a worker these are all of the rank's, and 0. In a worker of a DataLoader they are its
        contiguous block of them, reversed.

        Returns:
            (paths, worker number), or None without `data_paths`.

        Raises:
            ValueError: `set_epoch` was not called after `data_paths` was set, or workers get no path.
        """
        if self.data_paths is None:
            return None
        if not self.data_paths_per_rank and (self.remainder == "drop" or len(self.data_paths) >= self.world_size):
            raise ValueError(f"{self.dataset_name}: call set_epoch() after setting data_paths.")
        worker = get_worker_info()
        if worker is None:
            return list(self.data_paths_per_rank), 0
        block = self._take_block(self.data_paths_per_rank, worker.id, worker.num_workers, "worker")
        return block[::-1], worker.id

    def _take_block(self, paths: list[Path], index: int, parts: int, part: str) -> list[Path]:
        """Block `index` of `paths` divided into `parts` contiguous ones; `part` names them in messages."""
        name = self.dataset_name if part == "rank" else f"{self.dataset_name}, rank {self.local_rank}"
        each, left = divmod(len(paths), parts)
        if self.remainder == "deal":
            start = index * each + min(index, left)
            block = paths[start : start + each + (index < left)]
            if not block:
                _warn(self, "%s: %s %d of %d has none of the %d paths.", name, part, index, parts, len(paths))
            return block
        if each == 0:
            raise ValueError(
                f"{name}: {len(paths)} paths for {parts} {part}s leave some with nothing to read: "
                f"use at most {len(paths)} {part}s, or more and smaller files."
            )
        if left and (part == "rank" or index == 0):  # once a rank is enough
            _warn(
                self,
                "%s: %d of %d paths are left out of this epoch, as they can't be divided evenly by %d %ss: "
                "remainder='deal' reads all.",
                *(name, left, len(paths), parts, part),
            )
        return paths[index * each : (index + 1) * each]

    # The status of workers

    @property
    def data_status(self) -> list[Status] | None:
        """Where to start, one status for each worker. Setting it copies it, as `set_data_status` does."""
        return self._start_status

    @data_status.setter
    def data_status(self, data_status: list[Status] | None) -> None:
        self._start_status = copy.deepcopy(data_status)
        self._reached_status = None

    def set_data_status(self, data_status: list[Status] | None) -> None:
        """Start at `data_status`, a list with one status for each worker (copied); None is the beginning."""
        self.data_status = data_status

    def state_dict(self) -> dict[str, Any]:
        """`{"data_status": [...]}`: a copy of what was reached in this process, else of where to start.

        Workers of a DataLoader are other processes: what they reach does not show in the parent's dataset.
        """
        reached = self._reached_status
        return {"data_status": copy.deepcopy(self.data_status if reached is None else reached)}

    def load_state_dict(self, state_dict: dict[str, Any] | None) -> None:
        """Start where a `state_dict` says; None clears the status."""
        self.set_data_status(None if state_dict is None else state_dict.get("data_status"))

    def _get_worker_data_status(self, worker_id: int) -> Status:
        """The status at which a worker starts; None where there is none for it."""
        if self.data_status is None or worker_id >= len(self.data_status):
            return None
        return self.data_status[worker_id]

    def _set_worker_resume_data_status(self, worker_id: int, status: Status) -> None:
        """Note how far a worker has come (copied), for `state_dict`; `iter()` starts where it did before."""
        if self._reached_status is None:
            self._reached_status = copy.deepcopy(self.data_status) or [None] * self.num_workers
        missing = worker_id + 1 - len(self._reached_status)
        self._reached_status.extend([None] * missing)
        self._reached_status[worker_id] = copy.deepcopy(status)

    # Messages

    def _log_drop(self, reason: str, message: str, *args: object, every: int = 100, exc_info: Any = False) -> None:
        """Count a record that can't be used; log the first three of a reason and then every `every`th.

        It goes to the logger of the subclass's module at WARNING, as `NAME drop[REASON]=COUNT: MESSAGE`.

        Args:
            reason: A short word under which drops are counted.
            message: What is wrong, with %-placeholders for `args`.
            *args: Values for the placeholders.
            every: How often to log after the first three.
            exc_info: As in `logging`: True adds the exception that is being handled.
        """
        count = self._drop_counters.get(reason, 0) + 1
        self._drop_counters[reason] = count
        if count <= 3 or (every > 0 and count % every == 0):
            text = _filled(message, args)
            _warn(self, "%s drop[%s]=%d: %s", self.dataset_name, reason, count, text, exc_info=exc_info)


def _sorted_paths(name: str, paths: Sequence[Path]) -> list[Path]:
    if len(paths) == 0:
        raise ValueError(f"{name}: data_paths is empty: check what get_data_paths() looks for, and where.")
    kinds = {type(path).__name__ for path in paths if not isinstance(path, (str, tuple))}
    if not kinds and len({isinstance(path, tuple) for path in paths}) == 1:
        return sorted(paths, key=lambda path: path[:2] if isinstance(path, tuple) else path)
    held = ", ".join(sorted(kinds)) or "both strings and tuples"
    raise ValueError(
        f"{name}: data_paths must hold only strings or only tuples, and holds {held}: "
        f"make them alike in get_data_paths(), for instance by str()."
    )


def _warn(dataset: object, message: str, *args: object, exc_info: Any = False) -> None:
    # stacklevel: the line that is shown is the subclass's
    logging.getLogger(type(dataset).__module__).warning(message, *args, exc_info=exc_info, stacklevel=3)


def _filled(message: str, args: tuple[object, ...]) -> str:
    """`message` with its placeholders filled; one that does not fit its values must not stop the data."""
    if not args:
        return message
    try:
        return message % args
    except (TypeError, ValueError):
        return f"{message} {args}"
