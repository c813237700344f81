"""The plan of a mixture: which source each place takes, and how many there are before it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.plan import Grid, MixedPlan, Stop
from streamio.plan.mixing import spread


@st.composite
def plans(draw: st.DrawFn, stops: tuple[Stop, ...] = ("first_exhausted", "all_exhausted")) -> MixedPlan:
    """Plans of a few lanes, with more records than a batch takes."""
    sources = draw(st.integers(1, 5))
    rows, columns, share = (
        draw(st.integers(1, 20)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 2, 3, 7, 40, 100])),
    )
    most = min(sources if share > sources else share - 1, share)
    mandatory = tuple(sorted(draw(st.sets(st.integers(0, sources - 1), max_size=max(0, most)))))
    weights = draw(st.lists(st.floats(0.05, 10), min_size=sources, max_size=sources))
    least = rows * columns * 3
    records = draw(st.lists(st.integers(least, 12 * least), min_size=sources, max_size=sources))
    return MixedPlan(
        records=tuple(records),
        weights=tuple(weights),
        grid=Grid(rows, columns, rows * share),
        mandatory=mandatory,
        stop=draw(st.sampled_from(stops)),
        seed=draw(st.integers(0, 3)),
        epoch=draw(st.integers(0, 2)),
    )


def lane(plan: MixedPlan, row: int, column: int, steps: int) -> list[tuple[np.ndarray, list[int]]]:
    """The batches of a lane."""
    return [plan.batch(row, k) for k in range(column, steps, plan.grid.columns)]


@given(plans())
def test_counts_before_a_batch_are_what_was_dealt_before_it(plan: MixedPlan) -> None:
    row, column = plan.grid.rows - 1, plan.grid.columns - 1
    dealt = np.zeros(len(plan.weights), np.int64)
    for sources, before in lane(plan, row, column, min(plan.steps, 60)):
        assert len(sources) == plan.grid.share
        assert before == dealt.tolist()
        dealt += np.bincount(sources, minlength=len(dealt))


@given(plans())
def test_every_batch_holds_what_is_mandatory(plan: MixedPlan) -> None:
    for k in range(min(plan.steps, 60)):
        for row in range(plan.grid.rows):
            assert set(plan.mandatory) <= set(plan.batch(row, k)[0].tolist())


@given(plans(stops=("cycle",)), st.integers(0, 10**7))
def test_shares_are_within_the_stated_bound_of_the_weights(plan: MixedPlan, blocks: int) -> None:
    batches = blocks * -(-64 // plan.grid.share)
    for row, column in {(0, 0), (plan.grid.rows - 1, plan.grid.columns - 1)}:
        counts = plan.counts(row, column, batches)
        assert sum(counts) == batches * plan.grid.share
        for count, share in zip(counts, plan.shares, strict=True):
            assert abs(count - share * batches * plan.grid.share) <= plan.deviation + 1e-3
    total = sum(plan.weights)
    assert sum(plan.shares) == pytest.approx(1)
    for source, share in enumerate(plan.shares):
        if not plan.raised:
            assert share == pytest.approx(plan.weights[source] / total, rel=1e-5)
        elif source in plan.raised:
            assert share == pytest.approx(1 / plan.grid.share)
            assert share > plan.weights[source] / total


@given(plans())
def test_an_epoch_is_as_long_as_its_stop_says(plan: MixedPlan) -> None:
    def taken(steps: int) -> dict[tuple[int, int, int], int]:
        """Places of each source in each lane of so many batches, over their lengths."""
        counts = {}
        for column in range(plan.grid.columns):
            batches = len(range(column, steps, plan.grid.columns))
            for row in range(plan.grid.rows):
                for source, count in enumerate(plan.counts(row, column, batches)):
                    counts[row, column, source] = count - plan.lane_length(source, column)
        return counts

    if plan.stop == "first_exhausted":
        assert max(taken(plan.steps).values()) <= 0
        assert max(taken(plan.steps + 1).values()) > 0
    else:
        assert min(taken(plan.steps).values()) >= 0
        assert min(taken(plan.steps - 1).values()) < 0


@given(plans())
def test_lanes_hold_all_but_what_is_left_out(plan: MixedPlan) -> None:
    for source, records in enumerate(plan.records):
        held = plan.grid.rows * sum(plan.lane_length(source, column) for column in range(plan.grid.columns))
        assert held + plan.left_out(source) == records
        assert plan.left_out(source) < plan.grid.rows


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9).filter(any), st.integers(0, 10**12))
def test_places_are_spread_by_weight_and_never_taken_back(weights: list[int], places: int) -> None:
    counts, more = spread(places, weights), spread(places + 1, weights)
    assert sum(counts) == places
    assert sorted(b - a for a, b in zip(counts, more, strict=True)) == [0] * (len(weights) - 1) + [1]
    halvings = (len(weights) - 1).bit_length()
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count * sum(weights) - places * weight) <= halvings * sum(weights) / 2


def test_a_rare_source_does_not_come_in_all_lanes_at_once() -> None:
    plan = MixedPlan((10**6, 10**6), (0.99, 0.01), Grid(64, 1, 64 * 8), stop="cycle")
    rare = [sum(int((plan.batch(row, k)[0] == 1).sum()) for row in range(64)) for k in range(160)]
    assert sum(rare) == pytest.approx(160 * 64 * 8 * 0.01, abs=64)
    for first in range(0, 160, 8):  # a block: eight batches of each lane
        assert 30 <= sum(rare[first : first + 8]) <= 55  # 41 on average; 0 or 64 if lanes began at one place


def test_the_order_is_that_of_the_golden_one() -> None:
    plan = MixedPlan((500, 300, 200), (0.5, 0.3, 0.2), Grid(2, 2, 16), mandatory=(2,), seed=42, epoch=1)
    assert plan.steps == 62
    assert ["".join(map(str, plan.batch(row, k)[0])) for k in (0, 1, 20) for row in (0, 1)] == GOLDEN


GOLDEN = ["10001210", "12101100", "20101020", "00010200", "20100212", "01211100"]


def test_seed_epoch_and_lane_each_give_another_order() -> None:
    plan = MixedPlan((1000, 1000), (1, 1), Grid(2, 2, 64))
    orders = [
        plan.batch(0, 0),
        plan.batch(1, 0),
        plan.batch(0, 1),
        replace(plan, seed=1).batch(0, 0),
        replace(plan, epoch=1).batch(0, 0),
    ]
    assert max(Counter(tuple(sources.tolist()) for sources, _ in orders).values()) == 1
