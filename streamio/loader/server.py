"""Turns requests into collated batches, in a worker process or in the training process itself.

A request names an iteration and tokens: numbers of global batches (indexed) or columns (streamed).
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from streamio.loader.indexed import IndexedMaker
from streamio.loader.memory import keep_freed_memory
from streamio.loader.output import Output, to_batch
from streamio.loader.spec import Made, Spec, Start
from streamio.loader.streamed import StreamedMaker
from streamio.loader.threads import Threads
from streamio.observe.stats import IoCounts

if TYPE_CHECKING:
    from streamio.loader.chunk import Values
    from streamio.observe.drops import Drop
    from streamio.storage.reader import Reader


#: Threads of one process that decode splits; more than the machine or the decoder can use only hold memory.
DECODE_THREADS = max(1, min(4, os.cpu_count() or 1))


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

    def begin(self, start: Start, map_threads: Threads | None) -> Maker:
        """Begin an iteration, with threads for the user's map or none."""
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
        raw: Whether it is columns still, to be made into what the user gets by `to_batch`.
        records: Records in it.
        drops: Places whose slots fell out of it.
        refilled: Values that stand in for dropped ones.
        padded: Values that stand where no slot was left.
        sources: Records of each source (mixtures).
        cursor: Where the lane stands behind it (streamed).
        ended: The lane had nothing left.
        more: The lane has not come to a good record yet.
        io: Storage counters since the answer before.
        failure: The exception in place of a batch, with the worker's traceback as text.
    """

    batch: Any = None
    raw: bool = False
    records: int = 0
    drops: list[Drop] = field(default_factory=list)
    refilled: int = 0
    padded: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    cursor: Any = None
    ended: bool = False
    more: bool = False
    io: IoCounts = field(default_factory=IoCounts)
    failure: tuple[BaseException, str] | None = None


class SpecWork:
    """Work on a settled data set; its reader and its threads serve all iterations."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._reader: Reader | None = None
        self._threads: tuple[Threads, Threads] | None = None

    def begin(self, start: Start, map_threads: Threads | None) -> Maker:
        """A maker for the kind of plan at hand."""
        if self._reader is None:
            from streamio.storage.reader import Reader

            keep_freed_memory()
            self._reader = Reader(self.spec.read)
        if not self.spec.indexed:
            return StreamedMaker(self.spec, self._reader, start, map_threads)
        if self._threads is None:
            self._threads = Threads(DECODE_THREADS, "streamio-decode"), Threads(1, "streamio-decode-heavy")
        return IndexedMaker(self.spec, self._reader, self._threads, start, map_threads)

    def counts(self) -> IoCounts:
        """The reader's counters."""
        return IoCounts() if self._reader is None else IoCounts.of(self._reader.counters)

    def close(self) -> None:
        """Close the reader, and end the threads that wait for it."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for threads in self._threads or ():
            threads.close()
        self._threads = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_reader": None, "_threads": None}


@dataclass(frozen=True)
class Serving:
    """What is made of the slots of a batch.

    Attributes:
        batched: Whether values are delivered in batches, or one by one.
        output: What a batch is.
        collate: Applied to each batch, or to each value where not `batched`.
        threads: Threads that run the user's map; 0 for none beside the one that makes batches.
    """

    batched: bool = True
    output: Output = "records"
    collate: Callable[[Any], Any] | None = None
    threads: int = 0


class Server:
    """Serves one process's requests in order.

    Args:
        work: What batches are made of.
        serving: What is made of it.
    """

    def __init__(self, work: Work, serving: Serving) -> None:
        self._work = work
        self._serving = serving
        self._threads = Threads(serving.threads, "streamio-map") if serving.threads else None
        self._maker: Maker | None = None
        self._told = IoCounts()

    def begin(self, start: Start) -> None:
        """Begin an iteration; ends the one before."""
        self.end()
        self._maker = self._work.begin(start, self._threads)

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
        if self._threads is not None:
            self._threads.close()

    def _answer(self, token: int) -> Answer:
        assert self._maker is not None
        made = self._maker.make(token)
        counts = self._work.counts()
        answer = Answer(
            records=len(made.values),
            drops=made.drops,
            refilled=made.refilled,
            padded=made.padded,
            sources=made.sources,
            cursor=made.cursor,
            ended=made.ended,
            more=made.more,
            io=counts - self._told,
        )
        self._told = counts
        if answer.records:
            self._put_batch(answer, made.values)
        return answer

    def _put_batch(self, answer: Answer, values: Values) -> None:
        serving = self._serving
        if serving.batched and serving.collate is None and not isinstance(values, list):
            answer.batch, answer.raw = values, True  # columns travel better than what is made of them
            return
        batch = to_batch(values, serving.output)
        if not serving.batched:
            batch = batch[0]
        answer.batch = batch if serving.collate is None else serving.collate(batch)
