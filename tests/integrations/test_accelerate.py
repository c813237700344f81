"""Accelerate: prepare leaves the loader alone, and its checkpoints hold the place for any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integrations.launch import launched
from tests.loader.data import write_lines, write_parquet

BEGIN = """
import json
import torch
from accelerate import Accelerator
import streamio
from streamio.errors import StatusError

def prepared(**options):
    accelerator = Accelerator(cpu=True)
    dataset = streamio.StreamingDataset("data", shuffle=True, seed=1, window=9, **options)
    loader = streamio.DataLoader(dataset, global_batch_size=8)
    model = torch.nn.Linear(1, 1)
    _, _, left = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    assert left is loader
    accelerator.register_for_checkpointing(loader)
    return accelerator, loader
def ids(batch):
    return [record["id"] for record in batch]
"""


@pytest.mark.parametrize("world", [1, 2, 4])
def test_what_two_ranks_saved_is_taken_up_by_any_number_each_id_once(tmp_path: Path, world: int) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data", (40, 13, 11))
    save = """
accelerator, loader = prepared()
batches = iter(loader)
seen = [ids(next(batches)) for _ in range(3)]
accelerator.save_state("checkpoint")
print(json.dumps([seen, [ids(batch) for batch in batches]]))
"""
    load = """
accelerator, loader = prepared()
accelerator.load_state("checkpoint")
print(json.dumps([loader.step, [ids(batch) for batch in loader]]))
"""
    first = [json.loads(told) for told in launched(BEGIN + save, 2, tmp_path)]
    second = [json.loads(told) for told in launched(BEGIN + load, world, tmp_path)]
    assert {step for step, _ in second} == {3}
    batches = [batch for seen, _ in first for batch in seen] + [batch for _, rest in second for batch in rest]
    assert sorted(i for batch in batches for i in batch) == list(range(64))
    if world == 2:
        assert [rest for _, rest in second] == [rest for _, rest in first]


def test_the_main_processs_place_in_a_streamed_set_is_refused_by_the_others(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data", (40, 13, 11))
    program = """
accelerator, loader = prepared(end="cycle")
batches = iter(loader)
for _ in range(3):
    next(batches)
accelerator.save_state("checkpoint")
accelerator, loader = prepared(end="cycle")
loader.dataset.prepare()
try:
    accelerator.load_state("checkpoint")
except StatusError as error:
    print(error)
"""
    told = launched(BEGIN + program, 2, tmp_path)
    assert told[0] == ""
    assert "each rank's own state, or `Checkpoints`" in told[1]
