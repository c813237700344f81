"""Turns requests into collated batches, in a worker process or in the training process itself.

A request names an iteration and tokens: numbers of global batches (indexed) or columns (streamed).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from streamio.loader.indexed import IndexedMaker
from streamio.loader.spec import Made, Spec, Start
from streamio.loader.streamed import StreamedMaker
from streamio.observe.stats import IoCounts

if TYPE_CHECKING:
    from streamio.observe.drops import Drop
    from streamio.storage.reader import Reader


class Maker(Protocol):
    """Makes the batches of one iteration."""

    def make(self, token: int) -> Made:
        """The batch of a token."""
        ...

    def close(self) -> None:
        """End what it has begun."""
        ...


class Work(Protocol):
    """What a server works on: picklable, with whatever outlives an iteration made on first use."""

    def begin(self, start: Start) -> Maker:
        """Begin an iteration."""
        ...

    def counts(self) -> IoCounts:
        """Storage counters of this process so far."""
        ...

    def close(self) -> None:
        """Let go of clients and threads."""
        ...


@dataclass
class Answer:
    """One batch on its way to the consumer.

    Attributes:
        batch: What the user gets; None where there is nothing to deliver.
        records: Records in it.
        drops: Places whose slots fell out of it.
        refilled: Values that stand in for dropped ones.
        padded: Values that stand where no slot was left.
        cursor: Where the lane stands behind it (streamed).
        ended: The lane had nothing left.
        io: Storage counters since the answer before.
        failure: The exception in place of a batch, with the worker's traceback as text.
    """

    batch: Any = None
    records: int = 0
    drops: list[Drop] = field(default_factory=list)
    refilled: int = 0
    padded: int = 0
    cursor: Any = None
    ended: bool = False
    io: IoCounts = field(default_factory=IoCounts)
    failure: tuple[BaseException, str] | None = None


class SpecWork:
    """Work on a settled data set; its reader serves all iterations."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._reader: Reader | None = None

    def begin(self, start: Start) -> Maker:
        """A maker for the kind of plan at hand."""
        if self._reader is None:
            from streamio.storage.reader import Reader

            self._reader = Reader(self.spec.read)
        maker = IndexedMaker if self.spec.indexed else StreamedMaker
        return maker(self.spec, self._reader, start)

    def counts(self) -> IoCounts:
        """The reader's counters."""
        return IoCounts() if self._reader is None else IoCounts.of(self._reader.counters)

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_reader": None}


class Server:
    """Serves one process's requests in order.

    Args:
        work: What batches are made of.
        collate: Applied to each batch's list of values, or to each value where not `batched`.
        batched: Whether values are delivered in lists.
    """

    def __init__(self, work: Work, collate: Callable[[Any], Any] | None, *, batched: bool) -> None:
        self._work = work
        self._collate = collate
        self._batched = batched
        self._maker: Maker | None = None
        self._told = IoCounts()

    def begin(self, start: Start) -> None:
        """Begin an iteration; ends the one before."""
        self.end()
        self._maker = self._work.begin(start)

    def serve(self, tokens: Sequence[int]) -> list[Answer]:
        """Answers in the order of the tokens; none behind the first failure."""
        answers: list[Answer] = []
        for token in tokens:
            try:
                answers.append(self._answer(token))
            except Exception as error:  # noqa: BLE001, PERF203 - carried to the consumer, whatever it is
                answers.append(Answer(failure=(error, traceback.format_exc())))
                break
        return answers

    def end(self) -> None:
        """End the iteration."""
        if self._maker is not None:
            self._maker.close()
            self._maker = None

    def close(self) -> None:
        """End everything."""
        self.end()
        self._work.close()

    def _answer(self, token: int) -> Answer:
        assert self._maker is not None
        made = self._maker.make(token)
        counts = self._work.counts()
        answer = Answer(
            records=len(made.values),
            drops=made.drops,
            refilled=made.refilled,
            padded=made.padded,
            cursor=made.cursor,
            ended=made.ended,
            io=counts - self._told,
        )
        self._told = counts
        if made.values:
            batch = made.values if self._batched else made.values[0]
            answer.batch = batch if self._collate is None else self._collate(batch)
        return answer
