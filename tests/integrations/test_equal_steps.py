"""With end="even" ranks that wait for each other at every step come to the end of every epoch, whatever the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.gloo import ranks
from tests.integrations import launch  # noqa: F401 - what it imports beforehand
from tests.loader.data import write_parquet

WORLD, EPOCHS = 4, 2

PROGRAM = """
import torch
import streamio

def some_bad(record):
    if bad(record["id"]):
        raise streamio.DropRecord("bad")
    return record

def loader_of(**options):
    dataset = streamio.StreamingDataset(f"{folder}/data", map=some_bad, shuffle=shuffle, seed=1, group_timeout=30,
                                        **options)
    return streamio.DataLoader(dataset, batch_size=3, num_workers=workers)

loader = loader_of(end="even")
for epoch in range(epochs):
    loader.set_epoch(epoch)
    steps, ids = 0, []
    for batch in loader:
        together = torch.ones(1)
        dist.all_reduce(together)  # hangs where a rank makes fewer steps, until its deadline
        assert int(together) == world
        steps += 1
        ids += [record["id"] for record in batch]
        assert batch
    tell([steps, len(loader), ids])
stats = loader.stats(all_ranks=True)
tell([stats.records, stats.padded, stats.refilled, stats.dropped])
"""


def run(
    folder: Path, program: str = PROGRAM, workers: int = 0, shuffle: bool = False, bad: str = "False"
) -> list[list[Any]]:
    names = {"folder": str(folder), "workers": workers, "shuffle": shuffle, "epochs": EPOCHS}
    told = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    return ranks(folder, WORLD, f"{told}bad = lambda i: {bad}\n{program}")


def corrupt(path: Path) -> None:
    """Damage every page of a parquet file, and leave its footer whole."""
    data = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            first = column.dictionary_page_offset or column.data_page_offset
            data[first : first + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1,), {}),
        ((3,), {}),
        ((2, 0, 90, 1, 4, 14), {"shuffle": True, "workers": 2}),
        ((37, 40), {"shuffle": True, "bad": "i % 10 in (1, 4, 7)"}),
        ((24, 24, 24, 24), {"bad": "i < 23"}),
    ],
    ids=["one-record", "fewer-than-ranks", "uneven-shards", "30-percent-bad", "all-but-one-of-a-rank-bad"],
)
def test_all_ranks_make_the_steps_that_were_told_before(
    tmp_path: Path, sizes: tuple[int, ...], options: dict[str, Any]
) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data", sizes)
    told = run(tmp_path, **options)
    total = sum(sizes)
    is_bad: Callable[[int], bool] = eval(f"lambda i: {options.get('bad', 'False')}")
    good = [i for i in range(total) if not is_bad(i)]
    delivered = 0
    for epoch in range(EPOCHS):
        assert {tuple(rank[epoch][:2]) for rank in told} == {(-(-total // (3 * WORLD)),) * 2}
        ids = [i for rank in told for i in rank[epoch][2]]
        assert set(ids) == set(good)  # every good one is among them
        delivered += len(ids)
    records, padded, refilled, dropped = told[0][EPOCHS]
    assert all(rank[EPOCHS] == told[0][EPOCHS] for rank in told)
    assert records == delivered == EPOCHS * len(good) + padded + refilled
    assert dropped == ({"bad": EPOCHS * (total - len(good))} if len(good) < total else {})
    assert bool(refilled) == (len(good) < total)
    assert bool(padded) == bool(total % WORLD)


def test_a_corrupt_shard_that_falls_to_one_rank_costs_no_rank_a_step(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data", (12, 12, 12, 12))
    corrupt(tmp_path / "data" / "p002.parquet")
    told = run(tmp_path)
    good = {*range(24), *range(36, 48)}
    for epoch in range(EPOCHS):
        assert {tuple(rank[epoch][:2]) for rank in told} == {(4, 4)}
        assert {i for rank in told for i in rank[epoch][2]} == good
        assert len(told[2][epoch][2]) == 12  # others' records, in place of its own that are lost
    assert told[0][EPOCHS][1:3] == [0, 12 * EPOCHS]
    assert sum(told[0][EPOCHS][3].values()) == 12 * EPOCHS


def test_data_without_one_good_record_are_an_error_of_all_ranks_and_no_hang(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data", (20,))
    told = run(tmp_path, PROGRAM.partition("for epoch")[0] + "error(Exception, list, loader)", bad="True")
    assert all("good" in rank[0] for rank in told), told


def test_exact_warns_on_several_ranks_and_pads_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data", (13,))
    told = run(
        tmp_path,
        """
import logging
messages = []
class Keep(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())
logging.getLogger("streamio").addHandler(Keep())
"""
        + PROGRAM.partition("loader = loader_of(")[0]
        + """
loader = loader_of(end="exact")
batches = [[record["id"] for record in batch] for batch in loader]
stats = loader.stats(all_ranks=True)
tell([batches, messages, stats.padded, stats.refilled])
""",
    )
    assert sorted(i for rank in told for batch in rank[0][0] for i in batch) == list(range(13))
    assert [len(rank[0][0]) for rank in told] == [2, 1, 1, 1]
    for rank in told:
        assert any('end="exact" on 4 ranks: they may end at different steps' in message for message in rank[0][1])
        assert rank[0][2:] == [0, 0]
