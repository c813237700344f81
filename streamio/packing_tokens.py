"""pack: token sequences of a loader's records, put together into rows of one length with little padding.

It runs in the training process behind a `DataLoader`. What waits to be packed is kept in `packing_buffer`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from streamio.checks import one_of, whole
from streamio.errors import StatusError
from streamio.loader.dataloader import DataLoader
from streamio.packing_buffer import Waiting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamio.loader.iterator import LoaderIterator

logger = logging.getLogger(__name__)

Overlong: TypeAlias = Literal["split", "drop"]

VERSION = 1

_KEY = "streamio_pack"

#: What must be as it was for a saved buffer to mean anything.
_INPUTS = ("length", "buffer", "overlong")


def pack(
    loader: DataLoader,
    length: int,
    tokens: str | Callable[[Any], Any] = "tokens",
    *,
    buffer: int = 256,
    overlong: Overlong = "split",
    pad: int = 0,
) -> Packer:
    """Rows of `length` tokens out of a loader's records.

    Each row begins with the sequence that has waited longest, and takes the longest one that still fits, again and
    again, out of those in the buffer. So no sequence waits for more rows than there are sequences in the buffer.

    Args:
        loader: Delivers records (no `output` or `collate_fn` that makes something else of them).
        length: Tokens of a row.
        tokens: Key of a record's tokens, or a function that tells them: a list or one-dimensional array of ints. It is
            called in the training process: what takes long belongs into the data set's `map`, which workers run. A
            resume calls it again, so it has to give the same for the same record.
        buffer: Sequences that are held to choose from: more of them fill rows better.
        overlong: What becomes of a sequence longer than a row: `"split"` cuts it into pieces of `length`, the last one
            shorter, which are packed like sequences of their own; `"drop"` leaves it out (`stats().overlong`).
        pad: Stands in what is left of a row.

    Returns:
        An iterable of rows, with a place that can be saved.

    Raises:
        TypeError: `loader` is none of ours, or delivers no records; or an option of a wrong type.
        ValueError: A number below 1, or an unknown `overlong`.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"pack takes a streamio.DataLoader, not a {type(loader).__name__}: "
            "streamio.pack(streamio.DataLoader(dataset, 64), length=...)."
        )
    if not isinstance(tokens, str) and not callable(tokens):
        raise TypeError(f"tokens={tokens!r} must be a key of the records, or a function of a record.")
    one_of("overlong", overlong, get_args(Overlong))
    length, buffer = whole("length", length, 1), whole("buffer", buffer, 1)
    return Packer(loader, length, tokens, buffer, overlong, whole("pad", pad))


@dataclass
class PackStats:
    """What was packed in this process.

    Attributes:
        rows: Rows delivered.
        tokens: Tokens in them, padding left out.
        padding: Places in them without a token.
        sequences: Sequences in them; pieces count each.
        overlong: Records left out because they were too long (`overlong="drop"`).
        empty: Records without a token.
    """

    rows: int = 0
    tokens: int = 0
    padding: int = 0
    sequences: int = 0
    overlong: int = 0
    empty: int = 0

    @property
    def fill_rate(self) -> float:
        """Share of places that hold a token; 1 where there is no row yet."""
        return self.tokens / (self.tokens + self.padding) if self.rows else 1.0


class Packer:
    """Rows of tokens; made by `pack`.

    A row is a dict of numpy arrays: `tokens`, int64 of shape (length,); `cu_seqlens`, int32 of shape (sequences + 1,),
    where each sequence begins and the last one ends; `position_ids`, int64 of shape (length,), numbers of the tokens in
    their sequences, 0 in the padding.

    Attributes:
        loader: Where records come from.
        step: Rows delivered since the run began, over all epochs.
    """

    def __init__(
        self,
        loader: DataLoader,
        length: int,
        tokens: str | Callable[[Any], Any],
        buffer: int,
        overlong: Overlong,
        pad: int,
    ) -> None:
        self.loader = loader
        self.step = 0
        self.length = length
        self.buffer = buffer
        self.overlong = overlong
        self._tokens = tokens
        self._pad = pad
        self._stats = PackStats()
        self._stream: Waiting | None = None
        self._armed: list[dict[str, Any]] = []  # states that the next iterator begins at: this rank's, and all ranks'

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        """The rows of an epoch of the loader: from the loaded place on, else from its beginning.

        At the end of the epoch the buffer is emptied, so the last rows are filled less.
        """
        batches, again = self._begin()
        stream = self._stream = Waiting(
            self.loader, batches, self._pieces, length=self.length, size=self.buffer, again=again
        )
        try:
            while sequences := stream.next():
                self.step += 1
                yield self._row(sequences)
        finally:
            batches.close()

    def stats(self) -> PackStats:
        """What was packed so far in this process."""
        return replace(self._stats)

    def state_dict(self) -> dict[str, str]:
        """The place behind the last row delivered, as one JSON string. It is this rank's alone; asks no other one."""
        if self._armed:
            return {_KEY: json.dumps(self._armed[0], sort_keys=True)}
        mark, read, held = self._stream.place() if self._stream is not None else (self.loader.state(), 0, [])
        topology = self.loader.dataset.topology
        value = {
            "version": VERSION,
            "step": self.step,
            "rank": topology.rank,
            "world_size": topology.world_size,
            "loader": mark.to_json(),
            "read": read,
            "held": held,
        }
        return {_KEY: json.dumps(value | {name: getattr(self, name) for name in _INPUTS}, sort_keys=True)}

    def load_state_dict(self, state: Mapping[str, str] | Sequence[Mapping[str, str]]) -> None:
        """Let the next iterator begin at a place that `state_dict` told.

        Under the same ranks, lanes and batch size rows go on as they would have. Otherwise the loader goes on at the
        oldest record that was waiting: what was waiting is not lost, and what had been packed of the records behind it
        comes again, with a warning that tells how much.

        Args:
            state: From `state_dict`; or a list of those of all ranks, which have to be given where ranks, lanes or
                batch size may have changed: ranks stand at different records.

        Raises:
            StatusError: It is no state of ours, or does not fit.
        """
        values = [_opened(one) for one in ([state] if isinstance(state, Mapping) else state)]
        if not values:
            raise StatusError("There is no state in the list.")
        topology = self.loader.dataset.topology
        own = [v for v in values if (v["rank"], v["world_size"]) == (topology.rank, topology.world_size)]
        value = own[0] if own else _first(values)
        changed = [
            f"{name} was {value[name]!r} and is {getattr(self, name)!r} now"
            for name in _INPUTS
            if value[name] != getattr(self, name)
        ]
        if changed:
            raise StatusError(f"The saved place does not fit this packing: {'; '.join(changed)}.")
        self.loader.load_state_dict({"streamio": json.dumps(value["loader"])})
        self.step = int(value["step"])
        self._armed, self._stream = [value, _first(values)], None

    def _begin(self) -> tuple[LoaderIterator, tuple[int, dict[int, set[int]]]]:
        """The loader's batches; how many records of them to read again, and which pieces of which were waiting."""
        batches: LoaderIterator = iter(self.loader)
        own, first = self._armed or (None, None)
        self._armed = []
        if own is None or first is None:
            return batches, (0, {})
        now, topology = self._place(), self.loader.dataset.topology
        if now["epoch"] != own["loader"]["epoch"]:  # somebody chose another one
            return batches, (0, {})
        if (own["rank"], own["world_size"]) == (topology.rank, topology.world_size) and now == own["loader"]:
            held: dict[int, set[int]] = {}
            for record, piece in own["held"]:
                held.setdefault(record, set()).add(piece)
            return batches, (own["read"], held)
        if own["loader"] != first["loader"]:
            self.loader.load_state_dict({"streamio": json.dumps(first["loader"])})
            batches = iter(self.loader)
        if first["read"]:
            logger.warning(
                "Ranks, lanes or options are not those that rows were packed under: reading goes on at the oldest of "
                "%d records that were waiting on rank %d, and what had been packed of the %d behind it comes again.",
                len({record for record, _ in first["held"]}), first["rank"], first["read"],
            )  # fmt: skip
        return batches, (0, {})

    def _place(self) -> dict[str, Any]:
        """The loader's place, as it is when it has been saved and opened."""
        value: dict[str, Any] = json.loads(json.dumps(self.loader.state().to_json()))
        return value

    def _pieces(self, record: Any) -> list[NDArray[np.int64]]:
        """A record's sequences, none longer than a row."""
        try:
            found = record[self._tokens] if isinstance(self._tokens, str) else self._tokens(record)
        except (KeyError, TypeError) as error:
            if not isinstance(self._tokens, str):
                raise
            has = (
                f"keys {', '.join(map(str, record))}"
                if isinstance(record, Mapping)
                else f"type {type(record).__name__}"
            )
            raise TypeError(f"tokens={self._tokens!r} is no key of a record; it has {has}.") from error
        sequence = np.asarray(found)
        if sequence.ndim != 1 or (sequence.dtype.kind not in "iu" and len(sequence)):
            raise TypeError(
                f"tokens gave {sequence.dtype} of shape {sequence.shape}: give a list or one-dimensional array of ints."
            )
        sequence = sequence.astype(np.int64)
        self._stats.empty += not len(sequence)
        if len(sequence) > self.length and self.overlong == "drop":
            self._stats.overlong += 1
            return []
        return [sequence[low : low + self.length] for low in range(0, len(sequence), self.length)]

    def _row(self, sequences: list[NDArray[np.int64]]) -> dict[str, NDArray[Any]]:
        ends = [0, *accumulate(map(len, sequences))]
        row: dict[str, NDArray[Any]] = {
            "tokens": np.full(self.length, self._pad, np.int64),
            "cu_seqlens": np.array(ends, np.int32),
            "position_ids": np.zeros(self.length, np.int64),
        }
        row["tokens"][: ends[-1]] = np.concatenate(sequences)
        row["position_ids"][: ends[-1]] = np.concatenate([np.arange(len(sequence)) for sequence in sequences])
        stats = self._stats
        stats.rows += 1
        stats.tokens += ends[-1]
        stats.padding += self.length - ends[-1]
        stats.sequences += len(sequences)
        return row


def _opened(state: Mapping[str, str]) -> dict[str, Any]:
    """A state as values."""
    try:
        value = json.loads(state[_KEY])
        version = int(value["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise StatusError(f"This is no state of streamio.pack: {type(error).__name__}: {error}.") from None
    if version > VERSION:
        raise StatusError(
            f"The state is of version {version}; this streamio reads up to {VERSION}. Install a newer one."
        )
    assert isinstance(value, dict)
    return value


def _first(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the states of several ranks, the one that lost the least, with the lanes of all."""
    value = min(values, key=lambda each: (each["loader"]["epoch"], each["loader"]["k"]))
    lanes = {rank: own for each in values for rank, own in each["loader"].get("lanes", {}).items()}
    return {**value, "loader": value["loader"] | ({"lanes": lanes} if lanes else {})}
