"""Long runs of records that are dropped: what is told of them, and when a run stops for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import streamio
from streamio.errors import TooManyDropsError
from streamio.loader import indexed, streamed
from tests.loader.data import ids_of, write_lines, write_parquet


def none(record: dict[str, Any]) -> dict[str, Any]:
    raise streamio.DropRecord("unwanted", "by this test")


def some(record: dict[str, Any]) -> dict[str, Any]:
    if record["id"] % 29:
        raise streamio.DropRecord("unwanted")
    return record


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    write_lines(tmp_path, (400, 3, 250))
    return tmp_path


def loader_of(folder: Path, batch: int | None, workers: int = 0, **options: Any) -> streamio.DataLoader:
    return streamio.DataLoader(streamio.StreamingDataset(folder, **options), batch, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_counted_records_stop_a_run_as_soon_as_it_bears_no_more(tmp_path: Path, workers: int) -> None:
    write_parquet(tmp_path, (5000,), rows=500)
    loader = loader_of(tmp_path, 4, workers, map=none, max_drops=20)
    with pytest.raises(TooManyDropsError, match=r"the next 21 \(max_drops=20 bears no more\).*unwanted: by this test"):
        next(iter(loader))


def test_a_search_without_a_limit_is_told_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(indexed, "TOLD", 30)
    monkeypatch.setattr(indexed, "MOST_LOST", 100)
    write_parquet(tmp_path, (500,), rows=50)
    with pytest.raises(TooManyDropsError, match="not one good record among the next 101,"):
        next(iter(loader_of(tmp_path, 4, map=none)))
    assert "no good record among the next 30" in caplog.text


def test_what_filters_leave_out_is_searched_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed, "MOST_LOST", 100)
    write_parquet(tmp_path, (500,), rows=500)
    loader = loader_of(tmp_path, 4, filters=[("id", "==", 490)], max_drops=0)
    assert [490] in ids_of(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_drops_are_told_before_the_batch_is_found(
    lines: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(streamed, "TOLD", 10)
    loader = loader_of(lines, 4, workers, map=none, max_drops=20)
    with pytest.raises(TooManyDropsError, match="and 0 delivered: more drops than max_drops=20"):
        next(iter(loader))
    assert sum(loader.stats().dropped.values()) < 60


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_and_counts_do_not_depend_on_when_drops_are_told(
    lines: Path, monkeypatch: pytest.MonkeyPatch, workers: int, shuffle: bool
) -> None:
    def run(told: int, stop: int | None = None) -> tuple[list[list[int]], dict[str, int]]:
        monkeypatch.setattr(streamed, "TOLD", told)
        loader = loader_of(lines, 2, workers, map=some, shuffle=shuffle, window=40)
        seen = []
        if stop is not None:
            iterator = iter(loader)
            seen = [[record["id"] for record in next(iterator)] for _ in range(stop)]
            state = loader.state_dict()
            dropped = loader.stats().dropped
            loader = loader_of(lines, 2, workers, map=some, shuffle=shuffle, window=40)
            loader.load_state_dict(state)
            seen += ids_of(loader)
            return seen, {"unwanted": dropped.get("unwanted", 0) + loader.stats().dropped["unwanted"]}
        return ids_of(loader), loader.stats().dropped

    expected = run(10_000)
    assert sorted(one for batch in expected[0] for one in batch) == list(range(0, 653, 29))
    assert run(3) == expected
    assert all(run(3, stop) == expected for stop in range(1, len(expected[0]), 4))


def test_plain_iteration_goes_on_behind_told_drops(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "TOLD", 3)
    dataset = streamio.StreamingDataset(lines, map=some)
    assert [record["id"] for record in dataset] == list(range(0, 653, 29))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_nothing_but_drops_is_an_error(lines: Path, workers: int) -> None:
    loader = loader_of(lines, 4, workers, map=none)
    with pytest.raises(TooManyDropsError, match=r"Epoch 0 had not one good record: 653 were dropped.*by this test"):
        list(loader)
    assert loader.epoch == 0


@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize("end", ["exact", "even"])
def test_so_it_is_where_records_are_counted(tmp_path: Path, batch: int | None, end: str) -> None:
    write_parquet(tmp_path, (100,), rows=10)
    with pytest.raises(TooManyDropsError, match="not one good record"):
        list(loader_of(tmp_path, batch, map=none, end=end))


def test_an_epoch_whose_last_batches_are_empty_ends_in_order(tmp_path: Path) -> None:
    write_parquet(tmp_path, (100,), rows=10)
    loader = loader_of(tmp_path, 4, map=some, end="exact")
    assert ids_of(loader) == [[0], [29], [58], [87]]
    assert loader.epoch == 1


def test_on_a_rank_of_several_it_is_told(lines: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(lines, 4, map=none, end="exact", rank=0, world_size=2)
    assert list(loader) == []
    assert "On this rank: Epoch 0 had not one good record" in caplog.text


def test_what_filters_leave_out_as_a_whole_is_no_error(tmp_path: Path) -> None:
    write_parquet(tmp_path, (20,), rows=20)
    assert list(loader_of(tmp_path, 4, filters=[("text", "==", "record 1b")], end="exact")) == []
