"""The loader over real servers: faults on the way, bad data, start methods beside obstore, and other loaders."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import streamio
from tests.loader.data import ids_of, write_lines, write_parquet, write_tar

SIZES = (40, 23, 37)


def upload(bucket: Any, folder: Path, prefix: str = "data") -> str:
    for path in sorted(folder.iterdir()):
        bucket.put(f"{prefix}/{path.name}", path.read_bytes())
    return f"{bucket.url}/{prefix}"


def in_a_process(program: str, *arguments: str) -> str:
    """Run a program of its own, since a process that has used obstore can't be the others' parent."""
    script = f"import json, sys, streamio\n{textwrap.dedent(program)}"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "tar"])
@pytest.mark.parametrize("store", ["s3", "gcs", "localstack_s3"])
def test_every_record_comes_once_from_a_real_server(
    kind: str, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bucket = request.getfixturevalue(store)
    {"parquet": write_parquet, "tar": write_tar}.get(kind, write_lines)(tmp_path, SIZES)
    if kind == "jsonl.gz":
        for path in tmp_path.glob("*.jsonl"):
            (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    decode = {"json": json.loads} if kind == "tar" else None
    url = upload(bucket, tmp_path)
    dataset = streamio.StreamingDataset(url, shuffle=True, decode=decode, storage_options=bucket.storage_options)
    loader = streamio.DataLoader(dataset, 7, num_workers=2)
    name = "json" if kind == "tar" else "id"
    for _ in range(2):
        assert sorted(record[name] for batch in loader for record in batch) == list(range(100))
    if kind != "parquet":  # shards smaller than a footer's read come with the footer
        assert loader.stats().bytes_read > 0


def test_faults_on_the_way_are_outlived(faulty: Any, tmp_path: Path) -> None:
    from tests.servers.faults import Rule, cut_after, reset_after, status

    write_lines(tmp_path, (20_000, 20_000, 20_000, 20_000))
    url = upload(faulty, tmp_path)
    faulty.proxy.add(Rule(status(503, code="SlowDown"), method="GET", path=r"p000\.jsonl", times=3))
    faulty.proxy.add(Rule(reset_after(150_000), method="GET", path=r"p001\.jsonl", times=2))
    faulty.proxy.add(Rule(cut_after(150_000), method="GET", path=r"p002\.jsonl", times=1))
    dataset = streamio.StreamingDataset(url, storage_options=faulty.storage_options, shuffle=True)
    loader = streamio.DataLoader(dataset, 100, num_workers=2)
    assert sorted(i for batch in ids_of(loader) for i in batch) == list(range(80_000))
    stats = loader.stats()
    assert stats.retries == 6
    assert stats.dropped == {}
    goes_on = [r.range for r in faulty.proxy.requests if r.path.endswith("p001.jsonl")]
    assert len(goes_on) == 3
    assert goes_on[2] != goes_on[1]  # at the byte where it broke; the first time the part is asked for whole again


def test_a_corrupt_shard_and_a_bad_record_are_dropped_counted_and_reported(s3: Any, tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES, frozenset({50}))
    for path in tmp_path.glob("*.jsonl"):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    whole = (tmp_path / "p002.jsonl.gz").read_bytes()
    (tmp_path / "p002.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    url = upload(s3, tmp_path)
    options: dict[str, Any] = {"storage_options": s3.storage_options}
    loader = streamio.DataLoader(streamio.StreamingDataset(url, **options), 10, num_workers=2)
    seen = sorted(i for batch in ids_of(loader) for i in batch)
    assert set(seen) >= set(range(63)) - {50}
    assert loader.stats().dropped == {"json": 1, "corrupt": 1}
    places = {(drop.url.rsplit("/", 1)[-1], drop.reason): drop.position for drop in loader.ledger.drops.places()}
    assert places["p001.jsonl.gz", "json"].startswith("byte ")
    assert ("p002.jsonl.gz", "corrupt") in places
    with pytest.raises(streamio.StreamioError, match="max_drops=1"):
        list(streamio.DataLoader(streamio.StreamingDataset(url, max_drops=1, **options), 10, num_workers=2))


def test_a_shard_that_was_overwritten_is_an_error_and_never_a_blend(s3: Any, tmp_path: Path) -> None:
    write_parquet(tmp_path, (40_000,), rows=1000)
    url = upload(s3, tmp_path)
    dataset = streamio.StreamingDataset(url, storage_options=s3.storage_options)
    dataset.prepare()
    (tmp_path / "p000.parquet").unlink()
    write_parquet(tmp_path, (40_001,), rows=1000)
    upload(s3, tmp_path)
    with pytest.raises(streamio.StreamioError, match=r"p000\.parquet.*(overwritten|changed)"):
        list(streamio.DataLoader(dataset, 10, num_workers=1))


def test_workers_come_by_forkserver_where_this_process_has_read_through_obstore(s3: Any, tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    url = upload(s3, tmp_path)
    program = """
        import logging
        logging.basicConfig()
        url, options = json.loads(sys.argv[1])
        def ids(workers, **more):
            dataset = streamio.StreamingDataset(url, storage_options=options)
            loader = streamio.DataLoader(dataset, 10, num_workers=workers, **more)
            return sorted(r["id"] for batch in loader for r in batch)
        assert ids(2) == list(range(100))
        assert ids(0) == list(range(100))
        sys.stderr = sys.stdout
        logging.getLogger().handlers[0].setStream(sys.stdout)
        assert ids(2) == list(range(100))
        assert ids(0) == list(range(100))
        try:
            ids(1, multiprocessing_context="fork")
        except streamio.StreamioError as error:
            print(error)
    """
    # The program is given on the command line, so the forkserver has no main module to import.
    said = in_a_process(program, json.dumps([url, s3.storage_options]))
    assert said.count("workers are started by forkserver") == 1
    assert 'multiprocessing_context="fork" would hang' in said


def test_epochs_with_saves_between_forks_do_not_hang(s3: Any, tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    url = upload(s3, tmp_path)
    dataset = streamio.StreamingDataset(url, storage_options=s3.storage_options, shuffle=True)
    loader = streamio.DataLoader(dataset, 10, num_workers=2)
    checkpoints = streamio.Checkpoints(f"{s3.url}/runs", storage_options=s3.storage_options, keep=2)
    for _ in range(6):
        for _ in loader:
            if loader.step % 4 == 0:
                checkpoints.save(loader)
    assert loader.step == 60
    assert list(checkpoints.list()) == [56, 60]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_plain_torch_loader_delivers_every_record_once(tmp_path: Path, kind: str, workers: int) -> None:
    (write_parquet if kind == "parquet" else write_lines)(tmp_path, SIZES)
    dataset = streamio.StreamingDataset(tmp_path, shuffle=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=workers, collate_fn=list)
    orders = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        orders.append([record["id"] for batch in loader for record in batch])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(100))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_an_iterator_without_a_loader_goes_on_from_its_state(tmp_path: Path, kind: str) -> None:
    (write_parquet if kind == "parquet" else write_lines)(tmp_path, SIZES)

    def dataset_of() -> streamio.StreamingDataset:
        return streamio.StreamingDataset(tmp_path, shuffle=True, window=11)

    full = [record["id"] for record in dataset_of()]
    for stop in (0, 1, 10, 50, 99):
        dataset = dataset_of()
        iterator = iter(dataset)
        for _ in range(stop):
            next(iterator)
        state = json.loads(json.dumps(dataset.state_dict()))
        resumed = dataset_of()
        resumed.load_state_dict(state)
        assert [record["id"] for record in resumed] == full[stop:]
        assert [record["id"] for record in resumed] == full  # a state is used once


@pytest.mark.parametrize(("workers", "shuffle"), [(2, False), (2, True), (1, True)])
def test_little_more_is_read_than_the_slots_take_up(s3: Any, workers: int, shuffle: bool) -> None:
    random = np.random.default_rng(0)
    for number in range(4):
        rows = 200
        wanted = [random.bytes(3000) for _ in range(rows)]
        unwanted = [random.bytes(3000) for _ in range(rows)]
        table = pa.table({"id": range(number * rows, (number + 1) * rows), "unwanted": unwanted, "wanted": wanted})
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=20, write_statistics=False)
        s3.put(f"many/{number}.parquet", sink.getvalue())
    dataset = streamio.StreamingDataset(
        f"{s3.url}/many", columns=["id", "wanted"], shuffle=shuffle, storage_options=s3.storage_options
    )
    loader = streamio.DataLoader(dataset, 8, num_workers=workers)
    assert sorted(record["id"] for batch in loader for record in batch) == list(range(800))
    stats = loader.stats()
    assert stats.bytes_needed >= 800 * 3000  # what the wanted columns take up
    footers = 4 * (64 << 10) * (1 + workers)  # once to count; workers that are not forked read them again
    assert stats.bytes_read - footers < 1.1 * stats.bytes_needed
