from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.cli.report import Layout, Report, indexed, streamed
from streamio.errors import TopologyError
from streamio.plan import Grid, IndexedPlan, IndexedSplits, StreamedSplits


def counted(records: list[int], wire: int = 100) -> IndexedSplits:
    """Splits of these many records, two to a shard, each of `wire` bytes."""
    numbers = np.arange(len(records), dtype=np.int64)
    counts = np.array(records, dtype=np.int64)
    size = np.full(len(records), wire, dtype=np.int64)
    return IndexedSplits(numbers // 2, numbers % 2, np.zeros_like(counts), counts, size, size)


def ranges(sizes: list[int]) -> StreamedSplits:
    """One split a shard."""
    stop = np.array(sizes, dtype=np.int64)
    return StreamedSplits(np.arange(len(sizes), dtype=np.int64), np.zeros_like(stop), stop)


def slots_of(report: Report, splits: IndexedSplits) -> list[tuple[int, int]]:
    """Every (split, record) that the pieces name, by their first record and number of slots."""
    found = []
    for share in report.shares:
        for piece in share.pieces:
            begin, left = piece.begin, piece.slots or 0
            for split in piece.splits.tolist():
                stop = min(int(splits.records[split]), begin + left)
                found += [(split, record) for record in range(begin, stop)]
                left, begin = left - (stop - begin), 0
            assert left == 0
    return found


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    world_size = draw(st.integers(1, 4))
    rows = world_size * draw(st.integers(1, 3))
    grid = Grid(rows, draw(st.integers(1, 5)), rows * draw(st.integers(1, 4)))
    return Layout(grid, world_size, draw(st.integers(0, 6)))


@given(
    records=st.lists(st.integers(1, 12), min_size=1, max_size=20),
    layout=layouts(),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
    end=st.sampled_from(["even", "exact", "cycle"]),
    drop_last=st.booleans(),
)
def test_the_pieces_of_all_workers_are_the_data_set_once(
    records: list[int], layout: Layout, shuffle: bool, epoch: int, end: str, drop_last: bool
) -> None:
    splits = counted(records)
    report = indexed(splits, layout, epoch=epoch, shuffle=shuffle, end=end, drop_last=drop_last)
    found = slots_of(report, splits)
    assert len(found) == len(set(found))
    assert len(found) + (report.left_out or 0) == sum(records) == report.records
    assert sum(share.slots or 0 for share in report.shares) == len(found)
    if not drop_last:
        assert sorted(found) == [(split, record) for split, count in enumerate(records) for record in range(count)]
    # Whatever a piece names is what its bytes are counted for.
    assert all(piece.nbytes == 100 * len(piece.splits) for share in report.shares for piece in share.pieces)
    assert report.needed == 100 * len({split for split, _ in found})
    assert report.nbytes >= report.needed


@given(
    records=st.lists(st.integers(1, 12), min_size=1, max_size=20),
    layout=layouts(),
    end=st.sampled_from(["even", "exact"]),
)
def test_the_workers_of_a_rank_make_its_steps_between_them(records: list[int], layout: Layout, end: str) -> None:
    report = indexed(counted(records), layout, end=end)
    assert report.steps is not None
    for rank, steps in enumerate(report.steps):
        assert sum(share.batches or 0 for share in report.shares if share.rank == rank) == steps
    if end == "even":
        assert len(set(report.steps)) == 1
        delivered = sum(share.slots or 0 for share in report.shares) + (report.padding or 0)
        assert delivered % layout.world_size == 0


@given(records=st.lists(st.integers(1, 12), min_size=1, max_size=20), layout=layouts(), shuffle=st.booleans())
def test_a_piece_is_a_lane_of_the_plan(records: list[int], layout: Layout, shuffle: bool) -> None:
    splits = counted(records)
    plan = IndexedPlan(splits.records, layout.grid, shuffle=shuffle)
    for share in indexed(splits, layout, shuffle=shuffle).shares:
        for piece in share.pieces:
            if piece.column is not None and piece.slots:
                lane = plan.lane(piece.row, piece.column)
                split, record = plan.locate(np.arange(lane.start, lane.start + lane.length, dtype=np.int64))
                assert piece.column % layout.workers == share.worker
                assert piece.row in layout.grid.rows_of(share.rank, layout.world_size)
                assert (piece.slots, piece.begin) == (lane.length, int(record[0]))
                assert list(piece.splits) == list(dict.fromkeys(split.tolist()))


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=20), ranks=st.integers(1, 5), workers=st.integers(0, 4)
)
def test_every_streamed_split_is_read_by_one_lane(sizes: list[int], ranks: int, workers: int) -> None:
    layout = Layout(Grid(ranks, max(1, workers), ranks), ranks, workers)
    report = streamed(ranges(sizes), layout, shuffle=True)
    found = [split for share in report.shares for piece in share.pieces for split in piece.splits.tolist()]
    assert sorted(found) == list(range(len(sizes)))
    assert report.nbytes == report.needed == sum(sizes)
    assert report.records is report.steps is report.shares[0].slots is None


def test_a_split_that_a_cut_falls_into_is_read_by_both_lanes() -> None:
    report = indexed(counted([10, 10, 10]), Layout(Grid(2, 1, 2), 2))
    assert [share.splits for share in report.shares] == [2, 2]
    assert report.shares[1].pieces[0].begin == 5
    assert report.amplification == pytest.approx(4 / 3)
    assert any("1.33 times" in warning for warning in report.warnings)


def test_cuts_on_the_borders_of_splits_read_nothing_twice() -> None:
    report = indexed(counted([10, 10]), Layout(Grid(2, 1, 2), 2))
    assert report.amplification == 1.0
    assert report.warnings == ()


def test_the_last_batch_is_padded_to_rows_of_one_length_under_even_alone() -> None:
    layout = Layout(Grid(4, 1, 8), 4)
    assert indexed(counted([13]), layout).padding == 3
    assert indexed(counted([13]), layout).steps == (2, 2, 2, 2)
    exact = indexed(counted([9]), layout, end="exact")
    assert exact.padding == 0
    assert exact.steps == (2, 1, 1, 1)
    assert any("1 or 2 steps" in warning for warning in exact.warnings)


def test_drop_last_needs_no_bytes_of_splits_that_only_the_last_batch_has() -> None:
    report = indexed(counted([8, 3]), Layout(Grid(2, 1, 4), 2), drop_last=True)
    assert (report.left_out, report.steps, report.padding) == (3, (2, 2), 0)
    assert report.needed == 100


def test_workers_that_no_column_is_left_for_are_named() -> None:
    report = indexed(counted([40]), Layout(Grid(1, 4, 2), 1, 6))
    assert report.layout.workers == 4
    assert "Idle on each rank: workers 4 to 5." in report.warnings[0]
    assert "--lanes 1,6" in report.warnings[0]


def test_empty_lanes_are_counted() -> None:
    report = indexed(counted([5]), Layout(Grid(2, 3, 4), 2, 3))
    assert any("Empty lanes: 4 of 6" in warning for warning in report.warnings)


def test_ranks_without_a_streamed_split_are_named() -> None:
    report = streamed(ranges([10, 10]), Layout(Grid(4, 1, 4), 4))
    assert any("ranks 2 to 3" in warning for warning in report.warnings)


def test_an_endless_streamed_run_shares_splits_among_more_lanes() -> None:
    report = streamed(ranges([10, 10]), Layout(Grid(4, 1, 4), 4), end="cycle")
    assert [share.splits for share in report.shares] == [1, 1, 1, 1]
    assert report.amplification == 2.0
    assert any("2 of 4 lanes share" in warning for warning in report.warnings)


def test_uneven_streamed_lanes_are_told_with_their_bytes() -> None:
    report = streamed(ranges([3000, 10]), Layout(Grid(1, 2, 1), 1, 2))
    assert any("Uneven lanes" in warning and "2.93 KiB" in warning for warning in report.warnings)


def test_streamed_lanes_are_one_a_rank_and_worker() -> None:
    with pytest.raises(TopologyError, match="2,1, not 4,1"):
        streamed(ranges([10]), Layout(Grid(4, 1, 4), 2))
    with pytest.raises(TopologyError, match='end="even"'):
        streamed(ranges([10]), Layout(Grid(1, 1, 1)), end="even")


def test_ranks_that_do_not_divide_the_rows_are_refused() -> None:
    with pytest.raises(TopologyError, match="multiple"):
        Layout(Grid(4, 1, 4), 3)
