from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamio.plan import StreamedPlan, StreamedSplits
from streamio.plan.streamed import SPLIT_BYTES, STREAMS


@given(st.integers(0, 60), st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_lanes_hold_every_split_once_and_differ_by_one_at_most(
    splits: int, rows: int, columns: int, shuffle: bool, seed: int
) -> None:
    plan = StreamedPlan(splits, rows, columns, seed=seed, shuffle=shuffle)
    lanes = [plan.lane(row, column).tolist() for row in range(rows) for column in range(columns)]
    assert sorted(split for lane in lanes for split in lane) == list(range(splits))
    assert max(map(len, lanes)) - min(map(len, lanes)) <= 1
    ranks = [sum(len(plan.lane(row, column)) for column in range(columns)) for row in range(rows)]
    assert max(ranks) - min(ranks) <= columns


def test_every_rank_gets_a_split_before_any_gets_a_second() -> None:
    plan = StreamedPlan(splits=4, rows=4, columns=3)
    assert [len(plan.lane(row, 0)) for row in range(4)] == [1, 1, 1, 1]


def test_an_endless_stream_deals_anew_at_each_pass_and_leaves_no_lane_empty() -> None:
    plan = StreamedPlan(splits=3, rows=4, columns=2, shuffle=True, share=True)
    turns = [[plan.lane(row, column, turn).tolist() for row in range(4) for column in range(2)] for turn in range(3)]
    assert all(lane for lanes in turns for lane in lanes)
    assert turns[0] != turns[1] != turns[2]
    assert [plan.shared(row, column) for row in range(4) for column in range(2)] == [
        False,
        True,
        False,
        True,
        False,
        True,
        True,
        True,
    ]


@given(st.lists(st.integers(0, 5 * SPLIT_BYTES), max_size=20), st.sets(st.integers(0, 19)))
def test_cut_shards_cover_their_bytes_once_and_whole_ones_stay_whole(sizes: list[int], cuttable: set[int]) -> None:
    splits = StreamedSplits.cut(np.array(sizes, dtype=np.int64), cuttable.__contains__)
    for shard, size in enumerate(sizes):
        pieces = [(a, b) for s, a, b in zip(splits.shard, splits.start, splits.stop, strict=True) if s == shard]
        if not size:
            assert not pieces
            continue
        assert [a for a, _ in pieces] == [0, *(b for _, b in pieces[:-1])]
        assert pieces[-1][1] == size
        assert len(pieces) == (max(1, int(size / SPLIT_BYTES + 0.5)) if shard in cuttable else 1)
        assert max(b - a for a, b in pieces) - min(b - a for a, b in pieces) <= 1


def test_a_shuffled_dealing_is_the_same_for_good() -> None:
    plan = StreamedPlan(splits=10, rows=2, columns=2, seed=42, epoch=1, shuffle=True)
    assert [plan.lane(row, column).tolist() for row in range(2) for column in range(2)] == GOLDEN


GOLDEN = [[3, 0, 2], [8, 7], [9, 1, 6], [4, 5]]


@given(st.integers(0, 40), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 2))
def test_the_streams_of_a_lane_share_its_splits(splits: int, rows: int, columns: int, shuffle: bool, turn: int) -> None:
    plan = StreamedPlan(splits, rows, columns, seed=3, shuffle=shuffle)
    for row in range(rows):
        for column in range(columns):
            lane = plan.lane(row, column, turn).tolist()
            streams = [plan.stream(row, column, n, turn)[:, 0].tolist() for n in range(plan.streams(row, column))]
            assert sorted(split for stream in streams for split in stream) == sorted(lane)
            assert len(streams) == (max(1, min(STREAMS, len(lane))) if shuffle else 1)
            assert max(map(len, streams)) - min(map(len, streams)) <= 1
            assert shuffle or streams == [lane]
