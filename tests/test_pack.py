"""Packing: every token once, rows well filled, and the same rows after a resume at any of them."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamio
from streamio.errors import StatusError
from streamio.packing_tokens import Packer
from tests.loader.simulated import SimulatedLoader

CASES = settings.default.max_examples if settings.default.max_examples > 100 else 50


@contextmanager
def documents(lengths: list[int]) -> Iterator[Path]:
    """A folder with documents of these many tokens: document d has the tokens 1000 * d, 1000 * d + 1, ..."""
    path = Path(tempfile.mkdtemp())
    try:
        write(path / "p.parquet", lengths)
        yield path
    finally:
        shutil.rmtree(path)


def write(path: Path, lengths: list[int]) -> None:
    tokens = [list(range(1000 * number, 1000 * number + length)) for number, length in enumerate(lengths)]
    table = pa.table({"tokens": pa.array(tokens, pa.list_(pa.int64())), "id": range(len(lengths))})
    pq.write_table(table, path, row_group_size=4)


def loader_of(folder: Path, batch: int | None = 3, workers: int = 0, **options: Any) -> SimulatedLoader:
    dataset = streamio.StreamingDataset(folder, **{"shuffle": True, "window": 8, **options})
    return SimulatedLoader(dataset, batch, num_workers=workers)


def sequences(row: dict[str, Any]) -> list[list[int]]:
    """A row's sequences; the row must be sound."""
    ends = row["cu_seqlens"].tolist()
    assert row["cu_seqlens"].dtype == np.int32
    assert row["tokens"].shape == row["position_ids"].shape
    assert ends[0] == 0
    assert sorted(set(ends)) == ends
    found = []
    for low, high in pairwise(ends):
        assert row["position_ids"][low:high].tolist() == list(range(high - low))
        found.append(row["tokens"][low:high].tolist())
    assert set(row["tokens"][ends[-1] :].tolist()) <= {-1}
    assert not row["position_ids"][ends[-1] :].any()
    return found


def told(rows: Any) -> list[list[list[int]]]:
    return [sequences(row) for row in rows]


@settings(max_examples=CASES)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    length=st.integers(1, 30),
    buffer=st.integers(1, 20),
    batch=st.sampled_from([None, 1, 3, 10]),
    workers=st.sampled_from([0, 2]),
    overlong=st.sampled_from(["split", "drop"]),
    data=st.data(),
)
def test_every_token_is_packed_once_and_a_resume_packs_the_same_rows(
    lengths: list[int], length: int, buffer: int, batch: int | None, workers: int, overlong: Any, data: st.DataObject
) -> None:
    with documents(lengths) as folder:

        def packer() -> Packer:
            loader = loader_of(folder, batch, workers, end="exact")
            return streamio.pack(loader, length, buffer=buffer, overlong=overlong, pad=-1)

        first = packer()
        rows = told(first)
        seen = Counter(token for row in rows for sequence in row for token in sequence)
        kept = [(d, n) for d, n in enumerate(lengths) if overlong == "split" or n <= length]
        assert seen == Counter(1000 * d + i for d, n in kept for i in range(n))
        whole = {
            tuple(range(1000 * d + low, 1000 * d + min(n, low + length)))
            for d, n in kept
            for low in range(0, n, length)
        }
        assert {tuple(sequence) for row in rows for sequence in row} == whole
        stats = first.stats()
        assert (stats.rows, stats.tokens, stats.sequences) == (len(rows), sum(seen.values()), len(whole))
        assert stats.tokens + stats.padding == len(rows) * length
        assert (stats.overlong, stats.empty) == (len(lengths) - len(kept), lengths.count(0))
        assert first.step == len(rows)

        stop = data.draw(st.integers(0, len(rows)))
        second = packer()
        iterator = iter(second)
        assert told(islice(iterator, stop)) == rows[:stop]
        state = json.loads(json.dumps(second.state_dict()))
        iterator.close()  # type: ignore[attr-defined]
        third = packer()
        third.load_state_dict(state)
        assert third.state_dict() == state
        if third.loader.epoch == 0:
            assert told(third) == rows[stop:]
        else:
            assert stop == len(rows)
        assert third.step == len(rows)


@settings(max_examples=max(20, CASES // 5))
@given(st.lists(st.integers(1, 20), min_size=10, max_size=60), st.integers(1, 10))
def test_a_place_saved_after_a_resume_is_as_good(lengths: list[int], buffer: int) -> None:
    with documents(lengths) as folder:
        expected = told(streamio.pack(loader_of(folder, end="exact"), 20, buffer=buffer, pad=-1))
        rows: list[list[list[int]]] = []
        state = None
        while len(rows) < len(expected):
            packer = streamio.pack(loader_of(folder, end="exact"), 20, buffer=buffer, pad=-1)
            if state is not None:
                packer.load_state_dict(state)
            iterator = iter(packer)
            rows += told(islice(iterator, 3))
            state = packer.state_dict()
            iterator.close()  # type: ignore[attr-defined]
        assert rows == expected


def test_a_row_begins_with_the_oldest_and_takes_the_longest_that_fits(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", [5, 9, 3, 4, 5, 1])
    packer = streamio.pack(loader_of(tmp_path, shuffle=False), 10, buffer=6, pad=-1)
    assert [[len(sequence) for sequence in row] for row in told(packer)] == [[5, 5], [9, 1], [3, 4]]


def test_a_larger_buffer_fills_rows_better_and_the_fill_rate_tells(tmp_path: Path) -> None:
    random = np.random.Generator(np.random.PCG64(1))
    write(tmp_path / "p.parquet", random.integers(1, 100, 600).tolist())
    rates = []
    for buffer in (1, 8, 64):
        packer = streamio.pack(loader_of(tmp_path, 16), 128, buffer=buffer)
        assert packer.stats().fill_rate == 1
        rows = list(packer)
        assert packer.stats().fill_rate == packer.stats().tokens / (128 * len(rows))
        rates.append(packer.stats().fill_rate)
    assert rates == sorted(rates)
    assert rates[0] < 0.6
    assert rates[-1] > 0.97


def test_tokens_may_be_told_by_a_function_and_a_record_is_read_again_only_if_it_was_waiting(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", [5] * 40)
    asked: list[int] = []

    def tokens(record: dict[str, Any]) -> list[int]:
        asked.append(record["id"])
        return list(record["tokens"])

    packer = streamio.pack(loader_of(tmp_path), 10, tokens, buffer=4)
    iterator = iter(packer)
    rows = [next(iterator) for _ in range(10)]
    state = packer.state_dict()
    iterator.close()  # type: ignore[attr-defined]
    assert len(asked) == 22  # two of four are waiting
    assert len(rows) == 10
    waiting = asked[-2:]
    asked.clear()
    second = streamio.pack(loader_of(tmp_path), 10, tokens, buffer=4)
    second.load_state_dict(state)
    next(iter(second))
    assert asked[:2] == waiting


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_records_are_packed_and_go_on(tmp_path: Path, workers: int) -> None:
    for shard in range(3):
        lines = [json.dumps({"tokens": [100 * shard + i] * (1 + i % 7)}) for i in range(30)]
        (tmp_path / f"{shard}.jsonl").write_text("\n".join(lines))

    def packer() -> Packer:
        return streamio.pack(loader_of(tmp_path, 4, workers), 12, buffer=9)

    expected = [row["tokens"].tolist() for row in packer()]
    for stop in (0, 1, 7, len(expected) - 1):
        first = packer()
        iterator = iter(first)
        assert [row["tokens"].tolist() for row in islice(iterator, stop)] == expected[:stop]
        second = packer()
        second.load_state_dict(first.state_dict())
        assert [row["tokens"].tolist() for row in second] == expected[stop:]
        iterator.close()  # type: ignore[attr-defined]


def test_a_mixture_is_packed_with_real_workers_and_goes_on(tmp_path: Path) -> None:
    for name, count in {"a": 30, "b": 60}.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name / "p.parquet", [(7 * i) % 13 + 1 for i in range(count)])

    def packer() -> Packer:
        sources = {name: streamio.StreamingDataset(tmp_path / name, shuffle=True) for name in "ab"}
        loader = streamio.DataLoader(streamio.Mixture(sources, weights={"a": 1, "b": 2}), 5, num_workers=2)
        return streamio.pack(loader, 32, buffer=10)

    expected = [row["tokens"].tolist() for row in packer()]
    first = packer()
    begin = [row["tokens"].tolist() for row in islice(iter(first), 6)]
    second = packer()
    second.load_state_dict(first.state_dict())
    assert begin + [row["tokens"].tolist() for row in second] == expected


def test_epochs_follow_each_other(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", [3, 4, 5, 6])
    packer = streamio.pack(loader_of(tmp_path), 9, buffer=2)
    rows = [len(list(packer)) for _ in range(2)]
    assert packer.loader.epoch == 2
    assert packer.step == sum(rows)
    other = streamio.pack(loader_of(tmp_path), 9, buffer=2)
    other.load_state_dict(packer.state_dict())
    assert other.loader.epoch == 2
    assert list(other)


def test_a_state_is_small_and_holds_no_tokens(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", [7] * 900)
    packer = streamio.pack(loader_of(tmp_path, 32), 64, buffer=256)
    iterator = iter(packer)
    list(islice(iterator, 30))
    state = packer.state_dict()
    iterator.close()  # type: ignore[attr-defined]
    assert [*state] == ["streamio_pack"]
    assert len(state["streamio_pack"]) < 4096


def test_on_another_topology_nothing_that_waited_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lengths = [(5 * i) % 11 + 1 for i in range(80)]
    write(tmp_path / "p.parquet", lengths)

    def packers(world: int, **options: Any) -> list[Packer]:
        return [
            streamio.pack(
                loader_of(tmp_path, 2, rank=rank, world_size=world, end="exact", **options), 16, buffer=8, pad=-1
            )
            for rank in range(world)
        ]

    def rest(world: int, states: list[dict[str, str]], **options: Any) -> Counter[int]:
        found: Counter[int] = Counter()
        for packer in packers(world, **options):
            packer.load_state_dict(states)
            found.update(token for row in told(packer) for sequence in row for token in sequence)
        return found

    begun = packers(2)
    seen: Counter[int] = Counter()
    states = []
    for packer, rows in zip(begun, (6, 9), strict=True):  # ranks stand apart
        iterator = iter(packer)
        seen.update(token for row in told(islice(iterator, rows)) for sequence in row for token in sequence)
        states.append(packer.state_dict())
        iterator.close()  # type: ignore[attr-defined]
    every = {1000 * d + i for d, n in enumerate(lengths) for i in range(n)}

    with caplog.at_level(logging.WARNING):
        same = rest(2, states)
        assert "packed under" not in caplog.text
        assert seen + same == Counter(every)
        for world, options in ((1, {}), (4, {}), (2, {"lanes": (2, 2)})):
            caplog.clear()
            other = rest(world, states, **options)
            assert "reading goes on at the oldest of" in caplog.text
            assert set(seen) | set(other) == every
            assert max(other.values()) == 1
            assert sum((seen & other).values()) < sum(seen.values()) / 2  # some come again, as the warning tells


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", [3, 4, 5])
    loader = loader_of(tmp_path)
    state = streamio.pack(loader, 8).state_dict()
    for options, match in (({"length": 9}, "length was 8 and is 9"), ({"buffer": 5}, "buffer was 256 and is 5")):
        with pytest.raises(StatusError, match=match):
            streamio.pack(loader, **{"length": 8, **options}).load_state_dict(state)  # type: ignore[arg-type]
    packer = streamio.pack(loader, 8)
    newer = json.dumps(json.loads(state["streamio_pack"]) | {"version": 2})
    for wrong, match in (
        ({}, "no state of streamio.pack"),
        ({"streamio_pack": newer}, "of version 2"),
        ([], "no state"),
    ):
        with pytest.raises(StatusError, match=match):
            packer.load_state_dict(wrong)


def test_options_that_can_not_be_are_named(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", [3])
    loader: Any = loader_of(tmp_path)
    for error, match, make in (
        (TypeError, r"takes a streamio\.DataLoader, not a StreamingDataset", lambda: streamio.pack(loader.dataset, 8)),
        (TypeError, "tokens=3", lambda: streamio.pack(loader, 8, 3)),  # type: ignore[arg-type]
        (ValueError, "length=0", lambda: streamio.pack(loader, 0)),
        (ValueError, "buffer=0", lambda: streamio.pack(loader, 8, buffer=0)),
        (ValueError, "overlong='cut'", lambda: streamio.pack(loader, 8, overlong="cut")),  # type: ignore[arg-type]
    ):
        with pytest.raises(error, match=match):
            make()
    for tokens, match in (("words", "tokens='words' is no key of a record; it has keys tokens, id"),):
        with pytest.raises(TypeError, match=match):
            list(streamio.pack(loader, 8, tokens))
    for function in (lambda _: [[1]], lambda _: [1.5], lambda _: "text"):
        with pytest.raises(TypeError, match="give a list or one-dimensional array of ints"):
            list(streamio.pack(loader, 8, function))
    columns = streamio.DataLoader(loader.dataset, 1, output="columns")
    with pytest.raises(TypeError, match="batches of type dict: leave out output="):
        list(streamio.pack(columns, 8))
