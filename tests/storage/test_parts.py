"""Ranges cut into equal requests, and put together again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.storage.parts import GAP, SHORT, blocks, cut, joined, next_stop


def parts(start: int, stop: int, size: int) -> list[int]:
    """Lengths of the parts of a range, taken one after the other."""
    lengths = []
    while start < stop:
        end = next_stop(start, stop, size)
        lengths.append(end - start)
        start = end
    return lengths


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**5))
def test_parts_are_equal_and_as_many_as_come_closest_to_the_size_asked_for(start: int, nbytes: int, size: int) -> None:
    size = max(size, nbytes // 500)
    lengths = parts(start, start + nbytes, size)
    assert sum(lengths) == nbytes
    assert abs(len(lengths) - max(1.0, nbytes / size)) <= 0.5  # half-way, either count is as close
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("nbytes", "count"), [(1, 1), (149, 1), (151, 2), (250, 2), (1049, 10), (1051, 11)])
def test_the_last_part_is_never_tiny(nbytes: int, count: int) -> None:
    assert len(parts(7, 7 + nbytes, 100)) == count


@pytest.mark.parametrize("sizes", [[], [3], [1 << 20, 5, 1 << 20], [1] * 1000])
def test_chunks_are_joined_in_order_and_can_not_be_written_to(sizes: list[int]) -> None:
    chunks = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    chunks[1::2] = [memoryview(chunk) for chunk in chunks[1::2]]  # type: ignore[misc]
    whole = joined(iter(chunks), sum(sizes))
    assert whole == b"".join(chunks)
    assert memoryview(whole).readonly


def test_ranges_are_merged_over_small_gaps_alone() -> None:
    assert blocks([(500, 600), (0, 10), (7, 7), (5, 20)]) == [(0, 600)]
    assert blocks([(0, 10), (11 + GAP, 20 + GAP)]) == [(0, 10), (11 + GAP, 20 + GAP)]


def test_ranges_are_cut_out_of_blocks_and_only_short_ones_copied() -> None:
    data = random.Random(0).randbytes(3 * SHORT)
    short, empty, long, all_of_it = cut(
        {100: data}, [(110, 120), (4, 4), (100, 100 + 2 * SHORT), (100, 100 + 3 * SHORT)]
    )
    assert (short, empty) == (data[10:20], b"")
    assert isinstance(short, bytes)
    assert isinstance(long, memoryview)
    assert long.obj is data
    assert all_of_it is data
