"""Changes of the grid within an epoch: whatever was delivered before, what is left comes once."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamio.plan import Generation, Grid, IndexedPlan
from streamio.plan.rest import Rest, cut, dealt_on

grids = st.builds(
    lambda rows, columns, share: Grid(rows, columns, rows * share),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 6),
)


@st.composite
def plans(draw: st.DrawFn) -> IndexedPlan:
    return IndexedPlan(
        records=np.array(draw(st.lists(st.integers(1, 60), min_size=1, max_size=10)), dtype=np.int64),
        grid=draw(grids),
        seed=draw(st.integers(0, 3)),
        epoch=draw(st.integers(0, 2)),
        shuffle=draw(st.booleans()),
        window=draw(st.integers(1, 50)),
    )


def batch(plan: IndexedPlan, k: int, row: int) -> list[int]:
    """A row's slots of a global batch."""
    if k == plan.full:
        return [slot for stretch in plan.tail(row) for slot in stretch.order.tolist()]
    column, low, high = plan.places(k)
    slots = []
    for stretch in plan.lane(row, column).stretches(low, high):
        slots += stretch.order[max(0, low - stretch.first) : high - stretch.first].tolist()
    return slots


def delivered(plan: IndexedPlan, ks: tuple[int, ...]) -> list[int]:
    """The slots that the rows were given, each group of rows up to its own k."""
    each = plan.grid.rows // len(ks)
    return [slot for row in range(plan.grid.rows) for k in range(ks[row // each]) for slot in batch(plan, k, row)]


@settings(max_examples=max(500, settings.default.max_examples))
@given(plans(), st.data())
def test_over_any_chain_of_changes_every_slot_comes_once(plan: IndexedPlan, data: st.DataObject) -> None:
    slots: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        k = data.draw(st.integers(0, plan.steps))
        slots += delivered(plan, (k,))
        plan = replace(plan, grid=data.draw(grids), past=(*plan.past, Generation(plan.grid, (k,))))
        assert plan.left == plan.slots - len(slots)
    slots += delivered(plan, (plan.steps,))
    assert sorted(slots) == list(range(plan.slots))


@settings(max_examples=300)
@given(plans(), st.data())
def test_ranks_that_stand_apart_lose_and_repeat_nothing(plan: IndexedPlan, data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([n for n in range(1, plan.grid.rows + 1) if plan.grid.rows % n == 0]))
    ks = tuple(data.draw(st.lists(st.integers(0, plan.steps), min_size=groups, max_size=groups)))
    slots = delivered(plan, ks)
    plan = replace(plan, grid=data.draw(grids), past=(Generation(plan.grid, ks),))
    slots += delivered(plan, (plan.steps,))
    assert sorted(slots) == list(range(plan.slots))


@given(plans(), st.data())
@settings(max_examples=300)
def test_begun_windows_go_on_first_in_the_order_that_they_had(plan: IndexedPlan, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, plan.full))
    rests: list[int] = []
    untouched: list[int] = []
    for row in range(plan.grid.rows):
        for column in range(plan.grid.columns):
            lane = plan.lane(row, column)
            place = plan.grid.share * len(range(column, k, plan.grid.columns))
            for stretch in lane.stretches(place):
                begun = stretch.key is not None and stretch.first < place
                (rests if begun else untouched).extend(stretch.order[max(0, place - stretch.first) :].tolist())
        if k <= plan.full:
            untouched += [slot for stretch in plan.tail(row) for slot in stretch.order.tolist()]
    later = replace(plan, grid=Grid(1, 1, 1), shuffle=plan.shuffle, past=(Generation(plan.grid, (k,)),))
    order = [slot for stretch in later.lane(0, 0).stretches() for slot in stretch.order.tolist()]
    assert order[: len(rests)] == rests
    assert sorted(order[len(rests) :]) == sorted(untouched)
    base = [slot for start, stop in later.rest.ranges.T.tolist() for slot in range(start, stop)]
    assert base == sorted(untouched)


@given(
    st.lists(st.integers(1, 9), max_size=8),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5),
)
def test_a_cut_gives_each_position_with_its_piece(lengths: list[int], bounds: list[tuple[int, int]]) -> None:
    offsets = np.concatenate(([0], np.cumsum(np.array(lengths, np.int64)))).astype(np.int64)
    total = int(offsets[-1])
    intervals = [(min(low, high, total), min(max(low, high), total)) for low, high in bounds]
    owners = np.repeat(np.arange(len(lengths)), lengths)
    low, high = (np.array([each[side] for each in intervals], np.int64) for side in (0, 1))
    parts = zip(*(part.tolist() for part in cut(offsets, low, high)), strict=True)
    found = [(interval, piece, place) for interval, piece, a, b in parts for place in range(a, b)]
    assert found == [
        (number, int(owners[position]), position - int(offsets[owners[position]]))
        for number, (start, stop) in enumerate(intervals)
        for position in range(start, stop)
    ]


def test_a_pass_that_has_ended_leaves_nothing() -> None:
    grid = Grid(2, 2, 4)
    assert dealt_on(Rest.whole(11), Generation(grid, (3,)), 5).length == 0
    assert dealt_on(Rest.whole(11), Generation(grid, (2,)), 5).length == 3
    assert dealt_on(Rest.whole(0), Generation(grid, (0,)), 5).length == 0


def test_an_order_after_a_change_is_the_same_for_good() -> None:
    plan = IndexedPlan(np.array([6, 5, 7], np.int64), Grid(1, 2, 2), seed=42, epoch=1, shuffle=True, window=4)
    plan = replace(plan, grid=Grid(2, 1, 2), past=(Generation(plan.grid, (3,)),))
    assert [batch(plan, k, row) for k in range(plan.steps) for row in range(2)] == GOLDEN


@pytest.mark.parametrize("lanes", [(8, 4), (64, 4)])
def test_a_thousand_changes_are_followed_quickly(lanes: tuple[int, int]) -> None:
    rows, columns = lanes
    grids = [Grid(rows, columns, rows * 4), Grid(rows // 2, columns, rows * 4), Grid(rows, columns // 2, rows * 4)]
    past = tuple(Generation(grids[n % 3], (3 + n % 7,)) for n in range(1000))
    plan = IndexedPlan(np.full(100_000, 100, np.int64), grids[0], shuffle=True, window=5000, past=past)
    begun = time.process_time()
    left = plan.left
    assert left == plan.slots - sum(each.k * each.grid.batch for each in past)
    assert time.process_time() - begun < 5  # a second on a quiet machine


GOLDEN = [[13], [14], [12], [15], [4], [8], [7], [9], [5], [17], [6], [16]]
