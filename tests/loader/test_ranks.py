"""Several ranks in one process group: settled together, saved together, told together what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gloo import ranks
from tests.loader.data import write_lines, write_parquet

SIZES = (20, 13, 30)

BEGIN = """
import streamio
def ids(batches):
    return [[record["id"] for record in batch] for batch in batches]
def loader_of(batch=4, workers=0, **options):
    dataset = streamio.StreamingDataset(f"{folder}/data", shuffle=True, seed=1, group_timeout=30, **options)
    return streamio.DataLoader(dataset, batch, num_workers=workers)
"""


def run(tmp_path: Path, world: int, program: str) -> list[list[Any]]:
    return ranks(tmp_path, world, f"folder = {str(tmp_path)!r}\n{BEGIN}\n{program}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_ranks_share_an_epoch_and_a_resume_goes_on(tmp_path: Path, data: Path) -> None:
    write_parquet(data, SIZES)
    told = run(
        tmp_path,
        3,
        """
loader = loader_of(workers=2)
tell(ids(loader))
checkpoints = streamio.Checkpoints(f"{folder}/runs")
loader = loader_of(workers=2)
tell(checkpoints.resume(loader))
iterator = iter(loader)
next(iterator), next(iterator)
tell(checkpoints.save(loader))
del iterator
loader = loader_of(workers=2)
tell(checkpoints.resume(loader))
tell(ids(loader))
tell(loader.stats(all_ranks=True).records)
""",
    )
    full = [rank[0] for rank in told]
    assert sorted(i for rank in full for batch in rank for i in batch) == list(range(63))
    assert {rank[1] for rank in told} == {None}
    assert len({rank[2] for rank in told}) == 1
    assert {rank[3] for rank in told} == {2}
    assert [rank[4] for rank in told] == [rank[2:] for rank in full]
    assert {rank[5] for rank in told} == {63 - 24}
    assert [path.name for path in (tmp_path / "runs").glob("step-*")] == ["step-00000002"]


def test_lanes_of_all_ranks_are_gathered_and_given_back(tmp_path: Path, data: Path) -> None:
    write_lines(data, SIZES)
    told = run(
        tmp_path,
        2,
        """
loader = loader_of(workers=2, end="exact")
full = ids(loader)
tell(full)
loader = loader_of(workers=2, end="exact")
iterator = iter(loader)
for _ in range(min(3, len(full)) if rank else 1):
    next(iterator)
checkpoints = streamio.Checkpoints(f"{folder}/runs")
checkpoints.save(loader)
iterator.close()
loader = loader_of(workers=2, end="exact")
tell(checkpoints.resume(loader))
tell(loader.step)
tell(ids(loader))
""",
    )
    assert sorted(i for rank in told for batch in rank[0] for i in batch) == list(range(63))
    assert [rank[1] for rank in told] == [3, 3]
    assert [rank[2] for rank in told] == [1, 3]
    for full, _, step, rest in told:
        assert rest == full[step:]
    status = json.loads((tmp_path / "runs/step-00000003/streamio.json").read_text())
    assert set(status["lanes"]) == {"0", "1"}


def test_a_rank_that_has_ended_its_epoch_is_saved_with_those_that_have_not(tmp_path: Path, data: Path) -> None:
    write_lines(data, (4, 40))
    told = run(
        tmp_path,
        2,
        """
loader = loader_of(end="exact")
full = ids(loader)
tell(full)
loader = loader_of(end="exact")
iterator = iter(loader)
for _ in range(3):
    next(iterator, None)
checkpoints = streamio.Checkpoints(f"{folder}/runs")
checkpoints.save(loader)
iterator.close()
loader = loader_of(end="exact")
checkpoints.resume(loader)
tell([loader.epoch, loader.step])
tell(ids(loader))
tell(loader.epoch)
""",
    )
    assert sorted(len(rank[0]) for rank in told) == [1, 10]
    for full, place, rest, epoch in told:
        assert place == [0, min(3, len(full))]
        assert rest == full[3:]
        assert epoch == 1


def test_an_error_of_the_rank_that_lists_is_an_error_of_all(tmp_path: Path) -> None:
    told = run(tmp_path, 2, "error(streamio.StreamioError, iter, loader_of())")
    assert all("nothing-there" in rank[0] or f"{tmp_path}/data" in rank[0] for rank in told)
    assert told[0] == told[1]


def test_a_footer_that_one_rank_cant_use_is_an_error_of_all(tmp_path: Path, data: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_parquet(data, SIZES)
    pq.write_table(pa.table({"other": [1]}), data / "p001.parquet")
    told = run(tmp_path, 2, 'error(streamio.StreamioError, iter, loader_of(columns=["id"]))')
    assert all("p001.parquet" in rank[0] and "'id'" in rank[0] and "other" in rank[0] for rank in told)


def test_ranks_at_different_places_cant_save(tmp_path: Path, data: Path) -> None:
    write_parquet(data, SIZES)
    told = run(
        tmp_path,
        2,
        """
loader = loader_of()
iterator = iter(loader)
for _ in range(1 + rank):
    next(iterator)
error(streamio.StreamioError, streamio.Checkpoints(f"{folder}/runs").save, loader)
""",
    )
    assert all("Ranks stand at different places: step is 1 on rank 0 and 2 on rank 1" in rank[0] for rank in told)


def test_a_rank_that_does_not_save_is_named(tmp_path: Path, data: Path) -> None:
    write_parquet(data, SIZES)
    told = run(
        tmp_path,
        2,
        """
dataset = streamio.StreamingDataset(f"{folder}/data", group_timeout=3 if rank == 0 else 30)
loader = streamio.DataLoader(dataset, 4)
iterator = iter(loader)
if rank == 0:
    error(streamio.StreamioError, streamio.Checkpoints(f"{folder}/runs").save, loader)
else:
    time.sleep(6)
    tell("late")
""",
    )
    assert "1" in told[0][0]
    assert "saving the status" in told[0][0]


def test_drops_are_summed_over_ranks_at_save(tmp_path: Path, data: Path) -> None:
    write_lines(data, (30, 30), frozenset({3, 40}))
    told = run(
        tmp_path,
        2,
        """
loader = loader_of(end="exact", max_drops=1)
list(loader)
tell(loader.stats(all_ranks=True).dropped)
error(streamio.StreamioError, streamio.Checkpoints(f"{folder}/runs").save, loader)
""",
    )
    for rank in told:
        assert rank[0] == {"json": 2}
        assert "2 records were dropped" in rank[1]


def test_ranks_of_a_mesh_that_share_a_data_parallel_rank_get_the_same_records(tmp_path: Path, data: Path) -> None:
    write_parquet(data, SIZES)
    told = run(
        tmp_path,
        4,
        """
device_mesh = mesh((2, 2), ("dp", "tp"))
loader = loader_of(workers=1, device_mesh=device_mesh)
tell(ids(loader))
streamio.Checkpoints(f"{folder}/runs").save(loader)
""",
    )
    batches = [rank[0] for rank in told]
    assert batches[0] == batches[1] != batches[2] == batches[3]
    seen = [i for rank in (batches[0], batches[2]) for batch in rank for i in batch]
    assert set(seen) == set(range(63))
    assert len(seen) == 64


def test_exact_ranks_can_save_although_one_lost_a_whole_batch(tmp_path: Path, data: Path) -> None:
    write_parquet(data, (40,), rows=4)
    told = run(
        tmp_path,
        2,
        """
def lose(record):
    if record["id"] < 8:
        raise streamio.DropRecord("lost")
    return record
def loader():
    dataset = streamio.StreamingDataset(f"{folder}/data", map=lose, end="exact", group_timeout=30)
    return streamio.DataLoader(dataset, 4)
full = ids(loader())
tell(full)
first = loader()
iterator = iter(first)
for _ in range(2):
    next(iterator)
checkpoints = streamio.Checkpoints(f"{folder}/runs")
checkpoints.save(first)
iterator.close()
second = loader()
checkpoints.resume(second)
tell(ids(second))
""",
    )
    assert sorted(i for rank in told for batch in rank[0] for i in batch) == list(range(8, 40))
    for full, rest in told:
        assert rest == full[2:]


def test_a_write_that_failed_meanwhile_is_an_error_of_all(tmp_path: Path, data: Path) -> None:
    write_parquet(data, SIZES)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "step-00000001").write_text("a file where a folder should be")
    told = run(
        tmp_path,
        2,
        """
loader = loader_of()
iterator = iter(loader)
checkpoints = streamio.Checkpoints(f"{folder}/runs")
checkpoints.wait()
next(iterator)
checkpoints.save(loader, wait=False)
error(streamio.StreamioError, checkpoints.wait)
next(iterator)
checkpoints.save(loader, wait=False)
checkpoints.wait()
tell(checkpoints.latest())
""",
    )
    assert told[0] == told[1]
    assert "step-00000001" in told[0][0]
    assert told[0][1] == 2
