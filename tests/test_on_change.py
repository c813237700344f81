"""Data that change while a run goes on: an error, or taken up at the next epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import streamio
from streamio.errors import StatusError, TooManyDropsError
from tests.loader.data import ids_of, write_lines, write_parquet


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_parquet(folder, (20, 13))
    return folder


def loader_of(data: Path, **options: Any) -> streamio.DataLoader:
    options = {"shuffle": True, "on_change": "next_epoch", "end": "exact", **options}
    return streamio.DataLoader(streamio.StreamingDataset(data, **options), 4)


def add(data: Path) -> None:
    """A third shard, with the ids from 33 on."""
    more = data.parent / "more"
    more.mkdir()
    write = write_parquet if list(data.glob("*.parquet")) else write_lines
    write(more, (20, 13, 9))
    (new,) = more.glob("p002*")
    new.rename(data / new.name)


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(one for batch in batches for one in batch)


def test_new_shards_come_with_the_next_epoch(data: Path) -> None:
    loader = loader_of(data)
    seen = []
    for batch in loader:
        seen.append([record["id"] for record in batch])
        if len(seen) == 2:
            add(data)
    assert flat(seen) == list(range(33))
    assert flat(ids_of(loader)) == list(range(42))


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_an_epoch_that_was_begun_goes_on_with_the_shards_that_it_began_with(tmp_path: Path, form: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (write_parquet if form == "parquet" else write_lines)(data, (20, 13))
    loader, checkpoints = loader_of(data), streamio.Checkpoints(tmp_path / "runs")
    iterator = iter(loader)
    seen = [[record["id"] for record in next(iterator)] for _ in range(3)]
    checkpoints.save(loader)
    iterator.close()
    add(data)
    with pytest.raises(StatusError, match=r"1 added \(.*p002"):
        streamio.Checkpoints(tmp_path / "runs").resume(loader_of(data, on_change="error"))
    again = loader_of(data)
    assert streamio.Checkpoints(tmp_path / "runs").resume(again) == 3
    assert flat(seen + ids_of(again)) == list(range(33))
    assert flat(ids_of(again)) == list(range(42))


def test_an_epoch_behind_the_resumed_one_has_the_new_shards_and_the_runs_window(data: Path, tmp_path: Path) -> None:
    loader, checkpoints = loader_of(data, window=7), streamio.Checkpoints(tmp_path / "runs")
    next(iter(loader))
    checkpoints.save(loader)
    add(data)
    again = loader_of(data)
    checkpoints.resume(again)
    again.set_epoch(1)
    assert flat(ids_of(again)) == list(range(42))
    assert again.state().plan["window"] == 7


def test_a_status_between_epochs_takes_the_data_that_are_there(data: Path, tmp_path: Path) -> None:
    loader, checkpoints = loader_of(data), streamio.Checkpoints(tmp_path / "runs")
    list(loader)
    checkpoints.save(loader)
    add(data)
    again = loader_of(data)
    checkpoints.resume(again)
    assert again.epoch == 1
    assert flat(ids_of(again)) == list(range(42))


def test_shards_that_the_index_does_not_know_yet_wait_for_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, (20, 13))
    streamio.build_index(data)
    loader = loader_of(data, end="even")
    assert flat(ids_of(loader)) == list(range(33))
    add(data)
    assert flat(ids_of(loader)) == list(range(33))
    assert "the shards of the epoch before are read on" in caplog.text
    assert "p002" in caplog.text
    streamio.build_index(data)
    assert flat(ids_of(loader)) == list(range(42))


def test_what_another_loader_lists_anew_is_no_part_of_an_epoch_that_was_begun(data: Path, tmp_path: Path) -> None:
    dataset = streamio.StreamingDataset(data, shuffle=True, on_change="next_epoch", end="exact")
    train, other = (streamio.DataLoader(dataset, 4) for _ in range(2))
    iterator = iter(train)
    seen = [[record["id"] for record in next(iterator)] for _ in range(3)]
    list(other)
    add(data)
    assert flat(ids_of(other)) == list(range(42))
    streamio.Checkpoints(tmp_path / "runs").save(train)
    again = loader_of(data)
    assert streamio.Checkpoints(tmp_path / "runs").resume(again) == 3
    assert flat(seen + ids_of(again)) == list(range(33))


def test_a_damaged_shard_that_was_added_counts_as_dropped(data: Path) -> None:
    loader = loader_of(data, max_drops=0)
    list(loader)
    (data / "z.parquet").write_bytes(b"garbage")
    with pytest.raises(TooManyDropsError, match=r"z\.parquet"):
        list(loader)


def test_a_refused_resume_leaves_the_data_that_are_there(data: Path, tmp_path: Path) -> None:
    loader, checkpoints = loader_of(data), streamio.Checkpoints(tmp_path / "runs")
    next(iter(loader))
    checkpoints.save(loader)
    add(data)
    again = loader_of(data, seed=1)
    with pytest.raises(StatusError, match="seed was 0"):
        checkpoints.resume(again)
    assert flat(ids_of(again)) == list(range(42))


def test_a_place_that_lies_behind_the_end_of_fewer_records_is_the_next_epoch(data: Path) -> None:
    loader = loader_of(data, shuffle=False)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    less = loader_of(data, shuffle=False, max_records=8)
    less.load_state_dict(loader.state_dict(), allow=["max_records"])
    assert ids_of(less) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert less.epoch == 2


def test_an_epoch_that_goes_on_in_another_order_is_told(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(data)
    next(iter(loader))
    loader_of(data).load_state_dict(loader.state_dict())
    assert "other seed" not in caplog.text
    other = loader_of(data, seed=1)
    other.load_state_dict(loader.state_dict(), allow=["seed"])
    next(iter(other))
    assert "goes on with other seed: of its records some may come twice" in caplog.text
