"""Iteration outside of our own loader: in a plain torch DataLoader's worker, torchdata's, or no loader at all.

Columns come from the worker's number, records go out one by one, and the place is kept in the data set's own status.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from streamio.loader.server import Server, Serving, SpecWork
from streamio.loader.spec import Spec, Start
from streamio.loader.state import lanes_from_json, lanes_to_json
from streamio.plan import START, Grid

if TYPE_CHECKING:
    from streamio.dataset import StreamingDataset


logger = logging.getLogger(__name__)


def iterate(dataset: StreamingDataset, number: int, workers: int) -> Iterator[Any]:
    """The records of column `number` of `workers`, from the data set's status of that worker on."""
    world_size = dataset.prepare().topology.world_size
    spec = dataset.spec(Grid(world_size, workers, world_size), drop_last=False)
    start = _start(dataset, spec, number, workers)
    stop = None if spec.end == "cycle" or not spec.indexed else spec.steps(start)
    k, lanes = start.k, start
    server = Server(SpecWork(spec), Serving(batched=False))
    server.begin(start)
    try:
        while (stop is None or k < stop) and number not in lanes.ended:
            (answer,) = server.serve([k if spec.indexed else number])
            if answer.failure is not None:
                raise answer.failure[0]
            for drop in answer.drops:
                dataset.log_drop(drop)
            place: dict[str, Any] = {"epoch": start.epoch}
            if spec.indexed:
                k += workers
            else:
                k += not answer.more
                cursors = [*lanes.cursors[:number], answer.cursor, *lanes.cursors[number + 1 :]]
                ended = frozenset({number} if answer.ended else ())
                lanes = Start(start.epoch, k, cursors=tuple(cursors), ended=ended, column=number)
                place["lanes"] = lanes_to_json(lanes)
            # Before the record goes out: whoever asks in between is told where to go on behind it.
            dataset._set_worker_resume_data_status(number, {**place, "k": k})  # noqa: SLF001
            if answer.records:
                yield answer.batch
    finally:
        server.close()
    # The next pass in this process begins at the beginning; who asks for a state is told that this one has ended.
    reached = dataset.state_dict()["data_status"]
    dataset.set_data_status(None)
    if reached is not None:
        dataset._set_worker_resume_data_status(number, reached[number])  # noqa: SLF001


def _start(dataset: StreamingDataset, spec: Spec, number: int, workers: int) -> Start:
    """Where the status of this worker says, if it is of the epoch at hand; else the beginning."""
    status = dataset._get_worker_data_status(number)  # noqa: SLF001
    start = Start(dataset.epoch, number if spec.indexed else 0, cursors=(START,) * workers)
    if status is None:
        return start
    if status["epoch"] != dataset.epoch and dataset.epoch_chosen:
        logger.warning(
            "The loaded status is of epoch %d and set_epoch(%d) was called: this epoch begins at its beginning.",
            status["epoch"],
            dataset.epoch,
        )
        return start
    start = Start(int(status["epoch"]), int(status["k"]), cursors=start.cursors)
    return start if spec.indexed else lanes_from_json(start, status["lanes"])
