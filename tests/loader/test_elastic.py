"""Any number of ranks and workers: the same global batches on a grid that fits, every record once on any other."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import streamio
from streamio import status
from streamio.errors import StatusError, TopologyError
from streamio.loader.state import State
from streamio.plan import Cursor, Generation, Grid, StreamedPlan, StreamedRest
from streamio.topology import Topology
from tests.loader.data import ids_of, write_lines, write_parquet
from tests.loader.simulated import SimulatedLoader

CASES = max(100, settings.default.max_examples)

pytestmark = pytest.mark.timeout(1200)  # thousands of cases in the slow suite


@dataclass(frozen=True)
class Data:
    sizes: tuple[int, ...]
    bad: frozenset[int] = frozenset()
    shuffle: bool = True
    window: int = 10
    end: str = "even"
    on_drop: str | None = None
    lanes: tuple[int, int] | None = None
    drop_last: bool = False
    form: str = "parquet"
    on_topology_change: str = "deal"


@dataclass(frozen=True)
class Layout:
    world: int
    workers: int
    batch: int
    """The global one."""


@contextmanager
def folder_of(data: Data) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        (write_parquet if data.form == "parquet" else write_lines)(path, data.sizes)
        yield path
    finally:
        shutil.rmtree(path)


def loaders(data: Data, layout: Layout, folder: Path) -> list[SimulatedLoader]:
    """A loader for each rank. Only the first lists the folder: what comes of it is the same on all."""

    def leave_out(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] in data.bad:
            raise streamio.DropRecord("bad", "it is bad")
        return record

    made = []
    for rank in range(layout.world):
        dataset = streamio.StreamingDataset(
            folder,
            shuffle=data.shuffle,
            seed=3,
            window=data.window,
            end=data.end,  # type: ignore[arg-type]
            on_drop=data.on_drop,  # type: ignore[arg-type]
            lanes=data.lanes,
            on_topology_change=data.on_topology_change,  # type: ignore[arg-type]
            map=leave_out,
            rank=rank,
            world_size=layout.world,
        )
        if rank:
            dataset._settled = replace(made[0].dataset.prepare(), topology=Topology(rank, layout.world))
        made.append(
            SimulatedLoader(
                dataset, global_batch_size=layout.batch, num_workers=layout.workers, drop_last=data.drop_last
            )
        )
    return made


class Run:
    """The ranks of one topology, step by step together."""

    def __init__(self, data: Data, layout: Layout, folder: Path, value: dict[str, Any] | None = None) -> None:
        self.loaders = loaders(data, layout, folder)
        if value is not None:
            for rank, loader in enumerate(self.loaders):
                loader.adopt(State.from_json(value, rank))
        self.epoch = self.loaders[0].epoch
        self._iterators = [iter(loader) for loader in self.loaders]

    def step(self) -> list[int] | None:
        """The ids of the next global batch, rank by rank; None at the end of all."""
        batches = [next(iterator, None) for iterator in self._iterators]
        if all(batch is None for batch in batches):
            return None
        return [record["id"] for batch in batches if batch is not None for record in batch]

    def rest(self) -> list[list[int]]:
        found = []
        while (ids := self.step()) is not None:
            found.append(ids)
        return found

    def value(self) -> dict[str, Any]:
        """The status of all ranks, as it would be written and read again."""
        states = [json.loads(json.dumps(loader.state().to_json())) for loader in self.loaders]
        value = status.join(states, self.loaders[0].steps_of)
        for iterator in self._iterators:
            iterator.close()
        return json.loads(json.dumps(value, sort_keys=True))


@st.composite
def fitting(draw: st.DrawFn) -> tuple[Data, list[Layout]]:
    """Data with a grid, and layouts that fit it."""
    rows, columns = draw(st.sampled_from([1, 2, 4, 6])), draw(st.sampled_from([1, 2, 3, 4]))
    batch = rows * draw(st.integers(1, 4))
    sizes = (*draw(st.lists(st.integers(0, 40), min_size=1, max_size=4)), draw(st.integers(1, 20)))
    end = draw(st.sampled_from(["even", "exact"]))
    bad = st.frozensets(st.integers(0, sum(sizes) - 1), max_size=12)
    data = Data(
        sizes=sizes,
        # with "exact" a rank passes over a batch of which nothing is left: ranks come apart then, see the chains below
        bad=draw(bad) if end == "even" else frozenset(),
        shuffle=draw(st.booleans()),
        window=draw(st.integers(1, 30)),
        end=end,
        on_drop=draw(st.sampled_from([None, "refill", "short"])),
        lanes=(rows, columns),
    )
    worlds = [n for n in range(1, rows + 1) if rows % n == 0]
    workers = [0, *(n for n in range(1, columns + 1) if columns % n == 0)]
    layouts = [Layout(draw(st.sampled_from(worlds)), draw(st.sampled_from(workers)), batch) for _ in range(3)]
    return data, layouts


@settings(max_examples=CASES)
@given(fitting(), st.lists(st.integers(0, 30), min_size=2, max_size=2))
def test_global_batches_are_the_same_on_every_topology_that_fits(
    case: tuple[Data, list[Layout]], steps: list[int]
) -> None:
    data, layouts = case
    if len(data.bad) == sum(data.sizes):
        return
    with folder_of(data) as folder:
        whole = Run(data, Layout(1, 0, layouts[0].batch), folder).rest()
        resumed: list[list[int]] = []
        value = None
        for layout, count in zip(layouts, [*steps, 10**6], strict=True):
            run = Run(data, layout, folder, value)
            if run.epoch:
                break
            while count and (ids := run.step()) is not None:
                resumed.append(ids)
                count -= 1
            value = run.value()
        assert [ids for ids in resumed if ids] == [ids for ids in whole if ids]


@st.composite
def chains(draw: st.DrawFn, form: str = "parquet") -> tuple[Data, list[tuple[Layout, int]]]:
    """Data, and layouts of any kind with a number of steps for each but the last."""
    sizes = (*draw(st.lists(st.integers(0, 60), min_size=1, max_size=5)), draw(st.integers(1, 20)))
    data = Data(
        sizes=sizes,
        bad=draw(st.one_of(st.just(frozenset()), st.frozensets(st.integers(0, sum(sizes) - 1), max_size=12))),
        shuffle=draw(st.booleans()),
        window=draw(st.integers(1, 30)),
        end="exact",
        form=form,
    )
    runs = []
    for _ in range(draw(st.integers(2, 5))):
        world = draw(st.integers(1, 5))
        layout = Layout(world, draw(st.integers(0, 4)), world * draw(st.integers(1, 5)))
        runs.append((layout, draw(st.integers(0, 12))))
    return data, runs


def check_chain(data: Data, runs: list[tuple[Layout, int]]) -> None:
    assume(len(data.bad) < sum(data.sizes))  # an epoch of nothing but drops is an error
    with folder_of(data) as folder:
        seen: list[int] = []
        value = None
        for number, (layout, count) in enumerate(runs):
            run = Run(data, layout, folder, value)
            if run.epoch:
                break
            last = number == len(runs) - 1
            while (last or count) and (ids := run.step()) is not None:
                seen += ids
                count -= 1
            value = run.value()
        assert sorted(seen) == sorted(set(range(sum(data.sizes))) - data.bad)


@settings(max_examples=CASES)
@given(chains())
def test_over_any_chain_of_topologies_every_record_comes_once(case: tuple[Data, list[tuple[Layout, int]]]) -> None:
    check_chain(*case)


@settings(max_examples=CASES)
@given(chains("jsonl"))
def test_streamed_lanes_are_dealt_anew_without_loss(case: tuple[Data, list[tuple[Layout, int]]]) -> None:
    check_chain(*case)


def test_without_lanes_an_epoch_goes_on_under_its_grid_and_the_next_one_under_the_topologys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = Data((64,), end="even")
    with folder_of(data) as folder:
        whole = Run(data, Layout(4, 2, 8), folder).rest()
        run = Run(data, Layout(4, 2, 8), folder)
        seen = [run.step() for _ in range(3)]
        value = run.value()
        run = Run(data, Layout(2, 3, 8), folder, value)
        assert seen + run.rest() == whole
        assert "1 of 3 workers have nothing to do" in caplog.text
        later = run.value()
        assert (later["epoch"], later["plan"]["rows"], later["plan"]["columns"]) == (1, 2, 3)


def test_a_change_that_alters_the_order_is_told_with_numbers_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    data = Data((60,))
    with folder_of(data) as folder:
        run = Run(data, Layout(4, 0, 8), folder)
        run.step()
        value = run.value()
        Run(data, Layout(3, 0, 6), folder, value)
        assert "52 of 60 slots of epoch 0 are left and are dealt anew, to 3 rows" in caplog.text
        with pytest.raises(StatusError, match=r"global batch was 8 and is 6 now.*on_topology_change"):
            Run(replace(data, on_topology_change="raise"), Layout(3, 0, 6), folder, value)


def test_streamed_lanes_are_not_dealt_anew_where_that_is_refused() -> None:
    data = Data((60, 20, 30), form="jsonl", end="exact")
    with folder_of(data) as folder:
        run = Run(data, Layout(2, 0, 8), folder)
        run.step()
        value = run.value()
        with pytest.raises(StatusError, match=r"saved by 2 ranks with 1 columns.*on_topology_change"):
            Run(replace(data, on_topology_change="raise"), Layout(3, 0, 6), folder, value)


@pytest.mark.parametrize(
    ("lanes", "layout", "message"),
    [
        ((6, 1), Layout(4, 0, 24), r"multiple of the 4 ranks.*nearest that do: 4 or 8"),
        ((8, 1), Layout(4, 0, 12), r"divide the global batch of 12.*nearest that do: 4 or 12"),
        ((4, 4), Layout(4, 3, 8), r"3 workers can't share 4 columns.*columns that fit: 3 or 6; .* workers: 2 or 4"),
        ((4, 1), Layout(4, 0, 10), r"can't be shared by 4 ranks.*nearest that can: 8 or 12"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_at_construction_with_the_nearest(
    tmp_path: Path, lanes: tuple[int, int], layout: Layout, message: str
) -> None:
    dataset = streamio.StreamingDataset(tmp_path, lanes=lanes, rank=0, world_size=layout.world)
    with pytest.raises(TopologyError, match=message):
        streamio.DataLoader(dataset, global_batch_size=layout.batch, num_workers=layout.workers)


def test_lanes_need_records_that_are_counted() -> None:
    data = Data((5,), form="jsonl", end="exact", lanes=(1, 1))
    with folder_of(data) as folder, pytest.raises(TopologyError, match="streamio index"):
        ids_of(loaders(data, Layout(1, 0, 1), folder)[0])


def test_an_endless_stream_goes_on_in_its_pass_and_is_whole_after_that() -> None:
    data = Data((24, 16), end="cycle", window=7)
    with folder_of(data) as folder:
        run = Run(data, Layout(2, 2, 4), folder)
        seen = [each for _ in range(13) for each in run.step() or ()]  # 40 records are 10 steps: in the second pass
        run = Run(data, Layout(3, 1, 3), folder, run.value())
        seen += [each for _ in range(10) for each in run.step() or ()]
        run = Run(data, Layout(1, 0, 5), folder, run.value())
        left = 80 - len(seen)
        seen += [each for _ in range(-(-left // 5)) for each in run.step() or ()]
    assert sorted(seen[:40]) == list(range(40))
    assert sorted(seen[40:80]) == list(range(40))


@pytest.mark.parametrize("end", ["even", "cycle"])
def test_a_rest_without_a_good_record_is_filled_from_the_whole_pass(end: str) -> None:
    data = Data((40, 10), end=end, shuffle=False, bad=frozenset(range(40, 50)), on_drop="refill")
    with folder_of(data) as folder:
        run = Run(data, Layout(1, 0, 4), folder)
        seen = [each for _ in range(10) for each in run.step() or ()]
        run = Run(data, Layout(2, 0, 6), folder, run.value())
        filled = [run.step() for _ in range(2)]
    assert seen == list(range(40))
    assert all(batch and set(batch) <= set(range(40)) for batch in filled)


def test_lanes_beyond_the_splits_lose_nothing_of_a_rest() -> None:
    plan = StreamedPlan(2, 2, 1, share=True)
    entries = np.array([[0, 3, -1], [1, 7, -1], [0, 0, -1], [1, 0, -1], [0, 0, -1], [1, 0, -1], [0, 0, -1]])
    dealt = replace(plan, rows=4, rest=StreamedRest((), entries, 2))
    left = dealt.left({(row, 0): Cursor() for row in range(4)}, ())
    assert sorted(left.entries.tolist()) == sorted(entries.tolist())
    assert left.turn == 2


def test_a_refused_state_leaves_no_earlier_one_behind() -> None:
    with folder_of(Data((30,))) as folder, folder_of(Data((12, 9))) as other:
        foreign, wrong, loader = (loaders(Data(()), Layout(1, 0, 5), each)[0] for each in (other, folder, folder))
        for each, seed in ((foreign, 3), (wrong, 4)):
            each.dataset.seed = seed
            iterator = iter(each)
            next(iterator)
            loader.load_state_dict(each.state_dict())
            iterator.close()
        with pytest.raises(StatusError, match="seed was 4"):
            iter(loader)
        assert sorted(one for batch in ids_of(loader) for one in batch) == list(range(30))


def test_a_status_stays_small_over_a_thousand_changes() -> None:
    data = Data((5000,), end="exact")
    with folder_of(data) as folder:
        run = Run(data, Layout(3, 2, 3), folder)
        run.step()
        value = run.value()
        assert len(status.seal(value)) < 2048
        state = State.from_json(value, 0)
        grid = state.start.grid
        assert grid is not None
        wild = random.Random(0)
        rows = [wild.randrange(1, 5000) for _ in range(1000)]
        grids = [Grid(each, wild.randrange(1, 17), each * wild.randrange(1, 9)) for each in rows]
        past = tuple(Generation(each, (wild.randrange(1, 10**5),)) for each in grids)
        value |= replace(state, start=replace(state.start, past=past)).to_json()
        assert len(status.seal(value)) < 16 << 10
        assert State.from_json(json.loads(json.dumps(value)), 0).start.past == past
