"""Steering a run by hand: skipping steps, leaving shards out, validating in between."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamio
from tests.loader.data import ids_of, write_lines, write_parquet

SIZES = (20, 13, 31)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_parquet(tmp_path, SIZES)
    return tmp_path


def loader_of(folder: Path, workers: int = 0, **options: Any) -> streamio.DataLoader:
    options = {"shuffle": True, "seed": 1, **options}
    return streamio.DataLoader(streamio.StreamingDataset(folder, **options), 4, num_workers=workers)


def taken(loader: streamio.DataLoader, count: int) -> list[list[int]]:
    iterator = iter(loader)
    batches = [[record["id"] for record in next(iterator)] for _ in range(count)]
    iterator.close()
    return batches


@pytest.mark.parametrize("workers", [0, 2])
def test_the_stream_goes_on_at_the_step_skipped_to(folder: Path, workers: int) -> None:
    whole = ids_of(loader_of(folder, workers, lanes=(1, 2)))
    loader = loader_of(folder, workers, lanes=(1, 2))
    assert taken(loader, 3) == whole[:3]
    loader.load_state_dict(loader.state_dict())
    loader.skip_to(step=9)
    assert loader.step == 9
    assert ids_of(loader) == whole[9:]


def test_a_skip_may_go_past_the_end_of_the_epoch(folder: Path) -> None:
    loader = loader_of(folder)
    later = loader_of(folder)
    later.set_epoch(2)
    loader.skip_to(2 * len(loader) + 5)
    assert loader.epoch == 2
    assert ids_of(loader) == ids_of(later)[5:]


def test_skipping_back_is_refused_with_the_remedy(folder: Path) -> None:
    loader = loader_of(folder)
    taken(loader, 3)
    with pytest.raises(ValueError, match=r"at step 3. Resume from a checkpoint"):
        loader.skip_to(2)


def test_shards_are_left_out_from_a_step_on_and_after_resumes(folder: Path) -> None:
    bad = set(range(20, 33))
    url = (folder / "p001.parquet").as_uri()
    whole = ids_of(loader_of(folder, on_drop="short"))
    loader = loader_of(folder, on_drop="short")
    assert taken(loader, 5) == whole[:5]
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.leave_out(url)
    rest = [[one for one in batch if one not in bad] for batch in whole[5:]]
    assert taken(loader, 3) == rest[:3]
    again = loader_of(folder, on_drop="short")
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert ids_of(again) == rest[3:]
    assert not again.stats().dropped
    assert again.stats().filtered + loader.stats().filtered == len(bad - {one for batch in whole[:5] for one in batch})
    later = ids_of(again)
    assert not bad & {one for batch in later for one in batch}


def test_shards_left_out_are_not_read(folder: Path) -> None:
    loader = loader_of(folder, end="exact")
    loader.leave_out(*((folder / f"p00{number}.parquet").as_uri() for number in (0, 2)))
    assert sorted(one for batch in ids_of(loader) for one in batch) == list(range(20, 33))


def test_a_shard_that_is_not_there_cannot_be_left_out(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"p009.parquet is none of the 3 shards"):
        loader_of(folder).leave_out((folder / "p009.parquet").as_uri())


def test_a_shard_left_out_is_named_without_its_signature(folder: Path) -> None:
    loader = loader_of(folder)
    with pytest.raises(ValueError, match="is none of the 3 shards") as told:
        loader.leave_out("http://127.0.0.1/s000.parquet?X-Amz-Signature=SECRET")
    assert "SECRET" not in str(told.value)


def test_streamed_data_can_not_be_steered_without_an_index(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    with pytest.raises(TypeError, match="with an index"):
        loader_of(tmp_path).skip_to(3)


@pytest.mark.parametrize("workers", [0, 2])
def test_validating_in_mid_epoch_leaves_the_training_as_it_is(
    folder: Path, tmp_path_factory: Any, workers: int
) -> None:
    held_out = tmp_path_factory.mktemp("held-out")
    write_parquet(held_out, (9,))
    whole = ids_of(loader_of(folder, workers))
    loader, validation = loader_of(folder, workers), loader_of(held_out, workers, end="exact")
    torch.manual_seed(0)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    seen = []
    for batch in loader:
        seen.append([record["id"] for record in batch])
        if len(seen) in (2, 7):
            assert sorted(one for each in ids_of(validation) for one in each) == list(range(9))
            validation.set_epoch(0)
    assert seen == whole
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_a_local_shard_is_left_out_by_its_path(folder: Path) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder), 4)
    shard = sorted(folder.glob("*.parquet"))[0]
    loader.leave_out(str(shard))
    list(loader)
    assert loader.stats().filtered > 0
