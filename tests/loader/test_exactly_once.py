"""What streamio exists for: every record once, for all topologies, and again after a resume at any step."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamio
from streamio.errors import TooManyDropsError
from streamio.topology import Topology
from tests.loader.data import ids_of, write_lines, write_parquet
from tests.loader.simulated import SimulatedLoader

#: Cases of each of the two large properties.
CASES = max(100, settings.default.max_examples)


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, ...]
    bad: frozenset[int]
    world: int
    workers: int
    batch: int
    shuffle: bool
    seed: int
    epoch: int
    window: int
    drop_last: bool
    end: str
    on_drop: str | None
    resume_at: int

    @property
    def good(self) -> set[int]:
        return set(range(sum(self.sizes))) - self.bad


@st.composite
def cases(draw: st.DrawFn, ends: tuple[str, ...]) -> Case:
    sizes = tuple(draw(st.lists(st.integers(0, 50), min_size=1, max_size=5)))
    total = sum(sizes)
    bad = draw(st.sampled_from(["none", "some", "many"]))
    chosen = st.just(frozenset[int]()) if bad == "none" or not total else st.frozensets(st.integers(0, total - 1))
    return Case(
        sizes=sizes,
        bad=draw(chosen),
        world=draw(st.integers(1, 8)),
        workers=draw(st.integers(0, 4)),
        batch=draw(st.integers(1, 7)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        epoch=draw(st.integers(0, 3)),
        window=draw(st.integers(1, 40)),
        drop_last=draw(st.booleans()),
        end=draw(st.sampled_from(ends)),
        on_drop=draw(st.sampled_from([None, "refill", "short"])),
        resume_at=draw(st.integers(0, 400)),
    )


def loaders_of(case: Case, folder: Path) -> list[SimulatedLoader]:
    """A loader for each rank. Only the first lists the folder: what comes of it is the same on all."""
    loaders = [loader_of(case, folder, rank) for rank in range(case.world)]
    settled = loaders[0].dataset.prepare()
    for rank, loader in enumerate(loaders):
        loader.dataset._settled = replace(settled, topology=Topology(rank, case.world))
    return loaders


def loader_of(case: Case, folder: Path, rank: int) -> SimulatedLoader:
    def leave_out(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] in case.bad:
            raise streamio.DropRecord("bad", f"{record['id']} is bad")
        return record

    dataset = streamio.StreamingDataset(
        folder,
        shuffle=case.shuffle,
        seed=case.seed,
        window=case.window,
        end=case.end,  # type: ignore[arg-type]
        on_drop=case.on_drop,  # type: ignore[arg-type]
        map=leave_out,
        rank=rank,
        world_size=case.world,
    )
    loader = SimulatedLoader(dataset, case.batch, num_workers=case.workers, drop_last=case.drop_last)
    loader.set_epoch(case.epoch)
    return loader


def resumed(case: Case, folder: Path, rank: int, steps: int) -> list[list[int]]:
    """The batches that come after a stop behind `steps` batches, by loaders of their own."""
    first = loader_of(case, folder, rank)
    iterator = iter(first)
    for _ in range(steps):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    iterator.close()
    second = loader_of(case, folder, rank)
    second.set_epoch(0)
    second.load_state_dict(state)
    if second.epoch != case.epoch:  # the stop was at the very end of the epoch
        return []
    return ids_of(second)


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp())
    yield path
    shutil.rmtree(path)


class Folder:
    def __enter__(self) -> Path:
        self.path = Path(tempfile.mkdtemp())
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


@settings(max_examples=CASES)
@given(cases(ends=("even", "exact")))
def test_indexed_records_come_once_and_resumes_go_on(case: Case) -> None:
    with Folder() as folder:
        write_parquet(folder, case.sizes)
        slots = case.world * case.batch
        if not sum(case.sizes) or (case.drop_last and sum(case.sizes) < slots):
            with pytest.raises(streamio.StreamioError, match=r"not one record|drop_last"):
                len(loader_of(case, folder, 0))
            return
        loaders = loaders_of(case, folder)
        if not case.good and case.end == "even":
            with pytest.raises(TooManyDropsError, match="not one good record"):
                list(loaders[0])
            return
        try:
            ranks = [ids_of(loader) for loader in loaders]
        except TooManyDropsError:
            assert case.end == "exact"
            assert case.on_drop == "refill" or case.world == 1
            assert not case.good
            return
        assert case.good or case.world > 1 or case.drop_last

        stats = sum((loader.stats() for loader in loaders), streamio.Stats())
        seen = Counter(i for batches in ranks for batch in batches for i in batch)
        extra = sum((seen - Counter(case.good)).values())
        left_out = sum(case.sizes) % slots if case.drop_last else 0  # may stand in for others all the same
        assert extra <= stats.padded + stats.refilled <= extra + left_out
        assert stats.records == sum(seen.values())
        if case.end == "exact":
            assert stats.padded == 0
        if case.end == "exact" and case.on_drop != "refill":
            assert extra == 0
        missing = case.good - set(seen)
        assert len(missing) <= left_out
        assert stats.dropped.get("bad", 0) <= len(case.bad)
        if not case.drop_last:
            assert not missing
            assert stats.dropped.get("bad", 0) == len(case.bad)
        if case.end == "even":
            assert {len(batches) for batches in ranks} == {len(loaders[0])}
            assert {loader.step for loader in loaders} == {len(loaders[0])}
            if case.on_drop != "short":
                for step in range(len(loaders[0])):
                    assert len({len(batches[step]) for batches in ranks}) == 1
        assert all(loader.epoch == case.epoch + 1 for loader in loaders)

        rank = case.resume_at % case.world
        stop = case.resume_at % (len(ranks[rank]) + 1)
        assert resumed(case, folder, rank, stop) == ranks[rank][stop:]


@settings(max_examples=CASES)
@given(cases(ends=("exact",)))
def test_streamed_records_come_once_and_resumes_go_on(case: Case) -> None:
    with Folder() as folder:
        write_lines(folder, case.sizes, case.bad)
        loaders = loaders_of(case, folder)
        if case.bad and not case.good and case.world == 1 and not case.drop_last:
            with pytest.raises(TooManyDropsError, match="had not one good record"):
                ids_of(loaders[0])
            return
        ranks = [ids_of(loader) for loader in loaders]
        seen = Counter(i for batches in ranks for batch in batches for i in batch)
        assert max(seen.values(), default=1) == 1
        lanes = case.world * max(1, case.workers)
        lost = len(case.good) - len(seen)
        assert 0 <= lost <= (lanes * (case.batch - 1) if case.drop_last else 0)
        stats = sum((loader.stats() for loader in loaders), streamio.Stats())
        assert stats.dropped.get("json", 0) == len(case.bad)
        assert stats.records == len(seen)
        assert stats.padded == stats.refilled == 0

        rank = case.resume_at % case.world
        stop = case.resume_at % (len(ranks[rank]) + 1)
        assert resumed(case, folder, rank, stop) == ranks[rank][stop:]


@given(cases(ends=("cycle",)))
def test_an_endless_stream_is_every_record_once_a_pass_and_resumes(case: Case) -> None:
    with Folder() as folder:
        write_parquet(folder, case.sizes)
        slots = case.world * case.batch
        if not case.good or sum(case.sizes) < slots or case.bad:
            return
        loaders = loaders_of(case, folder)
        steps = sum(case.sizes) // slots if case.drop_last else -(-sum(case.sizes) // slots)
        ranks = []
        for loader in loaders:
            iterator = iter(loader)
            ranks.append(ids_of([next(iterator) for _ in range(2 * steps + 1)]))
            iterator.close()
        for turn in (range(steps), range(steps, 2 * steps)):
            seen = {i for batches in ranks for step in turn for i in batches[step]}
            assert len(seen) == (steps * slots if case.drop_last else sum(case.sizes))

        rank = case.resume_at % case.world
        stop = case.resume_at % (2 * steps + 1)
        first = loader_of(case, folder, rank)
        iterator = iter(first)
        for _ in range(stop):
            next(iterator)
        state = first.state_dict()
        iterator.close()
        second = loader_of(case, folder, rank)
        second.load_state_dict(state)
        iterator = iter(second)
        assert ids_of([next(iterator) for _ in range(2 * steps + 1 - stop)]) == ranks[rank][stop:]
        iterator.close()
