from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamio.plan import Grid, IndexedPlan, Stretch


@st.composite
def plans(draw: st.DrawFn) -> IndexedPlan:
    rows = draw(st.integers(1, 5))
    return IndexedPlan(
        records=np.array(draw(st.lists(st.integers(1, 30), min_size=1, max_size=12)), dtype=np.int64),
        grid=Grid(rows, draw(st.integers(1, 5)), rows * draw(st.integers(1, 6))),
        seed=draw(st.integers(0, 5)),
        epoch=draw(st.integers(0, 5)),
        shuffle=draw(st.booleans()),
        window=draw(st.integers(1, 40)),
    )


def windows(plan: IndexedPlan, row: int, column: int) -> np.ndarray:
    return joined(list(plan.lane(row, column).stretches()))


def joined(stretches: list[Stretch]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(stretch.order for stretch in stretches)])


@given(plans())
@settings(max_examples=300)
def test_lanes_and_the_short_batch_hold_every_slot_once(plan: IndexedPlan) -> None:
    lanes = [windows(plan, row, column) for row in range(plan.grid.rows) for column in range(plan.grid.columns)]
    tails = [joined(plan.tail(row)) for row in range(plan.grid.rows)]
    slots = np.concatenate(lanes + tails)
    assert sorted(slots.tolist()) == list(range(plan.slots))
    starts = [int(lane.min()) for lane in lanes if len(lane)]
    assert starts == sorted(starts)  # row-major, each contiguous
    lengths = [len(tail) for tail in tails]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(plans())
@settings(max_examples=300)
def test_full_batches_walk_each_lane_from_its_beginning_to_its_end(plan: IndexedPlan) -> None:
    at = dict.fromkeys(range(plan.grid.columns), 0)
    for k in range(plan.full):
        column, low, high = plan.places(k)
        assert column == k % plan.grid.columns
        assert (low, high - low) == (at[column], plan.grid.share)
        at[column] = high
    for row in range(plan.grid.rows):
        assert {column: plan.lane(row, column).length for column in at} == at


@given(plans())
@settings(max_examples=300)
def test_every_slot_is_a_record_of_a_split(plan: IndexedPlan) -> None:
    splits, numbers = plan.locate(np.arange(plan.slots, dtype=np.int64))
    assert sorted(zip(splits.tolist(), numbers.tolist(), strict=True)) == [
        (split, number) for split, records in enumerate(plan.records.tolist()) for number in range(records)
    ]


@given(plans(), st.data())
@settings(max_examples=300)
def test_splits_between_are_those_that_the_slots_fall_into(plan: IndexedPlan, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.slots))
    stop = data.draw(st.integers(start, plan.slots))
    splits, _ = plan.locate(np.arange(start, stop, dtype=np.int64))
    assert plan.splits_between(start, stop).tolist() == list(dict.fromkeys(splits.tolist()))


def test_a_shuffled_order_is_the_same_for_good() -> None:
    plan = IndexedPlan(np.array([3, 2, 4], dtype=np.int64), Grid(1, 1, 1), seed=42, epoch=1, shuffle=True, window=4)
    assert plan.splits.tolist() == GOLDEN_SPLITS
    assert windows(plan, 0, 0).tolist() == GOLDEN_ORDER


def test_epochs_seeds_and_turns_have_orders_of_their_own() -> None:
    def order(**changed: int) -> list[int]:
        inputs = {"seed": 0, "epoch": 0, "turn": 0, **changed}
        plan = IndexedPlan(np.array([10] * 10, dtype=np.int64), Grid(1, 1, 1), shuffle=True, window=100, **inputs)
        return plan.locate(windows(plan, 0, 0))[0].tolist() + plan.locate(windows(plan, 0, 0))[1].tolist()

    orders = [order(), order(seed=1), order(epoch=1), order(turn=1)]
    assert len({tuple(o) for o in orders}) == 4


def test_without_shuffle_the_order_is_that_of_the_data() -> None:
    plan = IndexedPlan(np.array([3, 2, 4], dtype=np.int64), Grid(1, 1, 1), shuffle=False)
    assert windows(plan, 0, 0).tolist() == list(range(9))


def test_a_million_splits_are_planned_in_little_memory_and_time() -> None:
    plan = IndexedPlan(
        np.full(1_000_000, 1000, dtype=np.int64), Grid(4096, 8, 4096 * 8), seed=1, shuffle=True, window=4096
    )
    lane = plan.lane(4095, 7)
    splits, _ = plan.locate(lane.stretch(0).order)
    assert len(splits) == 4096
    held = plan.splits.nbytes + plan.offsets.nbytes + plan.records.nbytes
    assert held <= 3 * 8 * 1_000_001


GOLDEN_SPLITS = [0, 1, 2]
GOLDEN_ORDER = [3, 0, 2, 1, 5, 6, 7, 4, 8]
