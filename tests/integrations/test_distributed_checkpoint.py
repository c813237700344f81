"""torch.distributed.checkpoint: one string, the same on all ranks, taken up by as many ranks as there are then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gloo import ranks
from tests.integrations import launch  # noqa: F401 - what it imports beforehand
from tests.loader.data import write_lines, write_parquet
from tests.servers.buckets import Bucket

SIZES = (70, 13, 40, 37)
IDS = list(range(sum(SIZES)))

BEGIN = """
import torch
import torch.distributed.checkpoint as dcp
from streamio.errors import StatusError
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter  # no public name yet
import streamio

def loader_of(**options):
    dataset = streamio.StreamingDataset(f"{folder}/data", shuffle=True, seed=1, window=20, group_timeout=30,
                                        **{"lanes": lanes, **options})
    return streamio.DataLoader(dataset, global_batch_size=16)
def gathered(ids):
    parts = [None] * world
    dist.all_gather_object(parts, ids)
    return [i for part in parts for i in part]
def steps(batches, count):
    for _, batch in zip(range(count), batches):
        tell(gathered([record["id"] for record in batch]))
def write(loader, url, **options):
    dcp.save({"loader": loader, "weight": torch.ones(3)}, storage_writer=FsspecWriter(url, **options))
def read(loader, url, **options):
    state = {"loader": loader, "weight": torch.zeros(3)}
    dcp.load(state, storage_reader=FsspecReader(url, **options))
    assert state["weight"].tolist() == [1, 1, 1]
"""


def run(folder: Path, world: int, program: str, lanes: Any = None, **names: Any) -> list[list[Any]]:
    """What each rank told; each run has a meeting place of its own."""
    place = folder / f"run-{len(list(folder.glob('run-*')))}"
    place.mkdir()
    told = "".join(f"{name} = {value!r}\n" for name, value in {"folder": str(folder), "lanes": lanes, **names}.items())
    return ranks(place, world, told + BEGIN + program)


def batches(folder: Path, world: int, program: str, lanes: Any = None, **names: Any) -> list[list[int]]:
    """The global batches, which every rank told alike."""
    told = run(folder, world, program, lanes, **names)
    assert all(rank == told[0] for rank in told)
    return told[0]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data", SIZES)
    return tmp_path


SAVE = """
loader = loader_of()
iterator = iter(loader)
steps(iterator, 3)
strings = [None] * world
dist.all_gather_object(strings, loader.state_dict())
assert list(strings[0]) == ["streamio"] and len(set(each["streamio"] for each in strings)) == 1, strings
write(loader, url, **options)
"""
GO_ON = """
loader = loader_of()
read(loader, url, **options)
tell(loader.step) if steps_too else None
steps(iter(loader), 100)
"""


@pytest.mark.parametrize("world", [2, 4, 8])
def test_what_four_ranks_saved_is_taken_up_by_any_number_each_id_once(data: Path, world: int) -> None:
    names = {"url": f"{data}/checkpoint", "options": {}, "steps_too": False}
    first = batches(data, 4, SAVE, **names)
    rest = batches(data, world, GO_ON, **names)
    assert len(first) == 3
    assert sorted(i for batch in first + rest for i in batch) == IDS


def test_with_lanes_the_global_batches_stay_the_same_on_two_four_and_eight_ranks_through_s3(
    data: Path, s3: Bucket
) -> None:
    names = {"url": f"{s3.url}/checkpoint", "options": s3.storage_options, "steps_too": False}
    lanes = (8, 2)
    full = batches(data, 1, "steps(iter(loader_of()), 100)", lanes)
    first = batches(data, 4, SAVE, lanes, **names)
    assert first == full[:3]
    for world in (2, 8):
        assert batches(data, world, GO_ON, lanes, **names) == full[3:]


def test_an_asynchronous_save_holds_the_place_at_which_it_was_asked_for(data: Path) -> None:
    told = batches(
        data,
        2,
        """
loader = loader_of()
iterator = iter(loader)
steps(iterator, 2)
own = dist.new_group()  # what is done meanwhile must not meet what the save does
future = dcp.async_save({"loader": loader}, checkpoint_id=f"{folder}/checkpoint", process_group=own)
steps(iterator, 3)
future.result(30)
iterator.close()
loader = loader_of()
dcp.load({"loader": loader}, checkpoint_id=f"{folder}/checkpoint")
tell([loader.step])
steps(iter(loader), 3)
""",
    )
    assert told[5] == [2]
    assert told[6:] == told[2:5]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data", SIZES)
    return tmp_path


STREAMED = """
def loader_of():
    dataset = streamio.StreamingDataset(f"{folder}/data", shuffle=True, seed=1, end=end, group_timeout=30)
    return streamio.DataLoader(dataset, batch_size=4)
loader = loader_of()
iterator = iter(loader)
seen = [record["id"] for _ in range(4) for record in next(iterator)]
"""


def test_one_string_for_all_ranks_of_a_streamed_set_is_refused_with_what_to_do(lines: Path) -> None:
    told = run(
        lines,
        2,
        STREAMED
        + """
write(loader, f"{folder}/checkpoint")
iterator.close()
loader = loader_of()
loader.dataset.prepare()
error(StatusError, read, loader, f"{folder}/checkpoint")
""",
        end="cycle",
    )
    refused = [rank[0] for rank in told if rank[0] != "no error"]
    assert len(refused) == 1
    assert "each rank's own state, or `Checkpoints`" in refused[0]


def test_a_string_of_a_rank_that_is_ahead_in_the_next_epoch_is_refused_by_one_that_is_not(lines: Path) -> None:
    told = run(
        lines,
        2,
        """
def loader_of():
    dataset = streamio.StreamingDataset(f"{folder}/data", end="exact", group_timeout=30)
    return streamio.DataLoader(dataset, batch_size=60)
loader = loader_of()
iterator = iter(loader)
while loader.epoch == 0 if rank == 0 else loader.step < 1:
    next(iterator, None)
strings = [None] * world
dist.all_gather_object(strings, loader.state_dict())
iterator.close()
loader = loader_of()
loader.dataset.prepare()
error(StatusError, loader.load_state_dict, strings[0])
""",
    )
    assert "each rank's own state, or `Checkpoints`" in told[1][0]


def test_a_key_for_each_rank_keeps_every_ranks_lanes(lines: Path) -> None:
    told = run(
        lines,
        2,
        STREAMED
        + """
key = f"loader-{rank}"
dcp.save({key: loader}, checkpoint_id=f"{folder}/checkpoint")
seen += [record["id"] for record in next(iterator)]
expected = [record["id"] for record in next(iterator)]
iterator.close()
loader = loader_of()
dcp.load({key: loader}, checkpoint_id=f"{folder}/checkpoint")
iterator = iter(loader)
tell(seen[-4:] == [record["id"] for record in next(iterator)])
tell(expected == [record["id"] for record in next(iterator)])
iterator.close()
""",
        end="cycle",
    )
    assert told == [[True, True], [True, True]]
