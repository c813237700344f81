from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "automodel_parquet.py"
FILES, ROWS = 4, 6
ALL = {file * 100 + row for file in range(FILES) for row in range(ROWS)}


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("automodel_parquet", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def parquet(ids: list[int], texts: list[str | None] | None = None) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"id": ids, "text": texts or [f"text {i}" for i in ids]})
    pq.write_table(table, sink, row_group_size=4)  # two row groups, the second one shorter
    return sink.getvalue()


@pytest.fixture
def corpus(s3: Any) -> Any:
    for file in range(FILES):
        s3.put(f"train/part-{file}.parquet", parquet([file * 100 + row for row in range(ROWS)]))
    s3.put("train/_SUCCESS", b"")
    return s3


def make(example: Any, s3: Any, **options: Any) -> Any:
    return example.ParquetTextDataset("demo", f"{s3.url}/train", s3.storage_options, **options)


@pytest.mark.parametrize("stop", [1, 2, 9, 23])
def test_one_rank_with_two_workers_delivers_every_record_once_over_stop_and_resume(
    example: Any, corpus: Any, stop: int
) -> None:
    before = make(example, corpus, num_workers=2)
    ids = [record["id"] for record in example.deliver(before, stop)]
    state = json.loads(json.dumps(before.state_dict()))
    after = make(example, corpus, num_workers=2)
    after.load_state_dict(state)
    ids += [record["id"] for record in example.deliver(after)]
    assert sorted(ids) == sorted(ALL)


def test_two_ranks_deliver_every_record_once_over_stop_and_resume(example: Any, corpus: Any) -> None:
    ids = []
    for rank, stop in ((0, 5), (1, 8)):
        before = make(example, corpus, local_rank=rank, world_size=2, num_workers=2)
        ids += [record["id"] for record in example.deliver(before, stop)]
        after = make(example, corpus, local_rank=rank, world_size=2, num_workers=2)
        after.load_state_dict(before.state_dict())
        ids += [record["id"] for record in example.deliver(after)]
    assert sorted(ids) == sorted(ALL)


def test_without_workers_its_own_state_dict_resumes_it(example: Any, corpus: Any) -> None:
    before = make(example, corpus, num_workers=0)
    iterator = iter(before)
    ids = [next(iterator)["id"] for _ in range(7)]
    after = make(example, corpus, num_workers=0, data_status=before.state_dict()["data_status"])
    ids += [record["id"] for record in after]
    assert sorted(ids) == sorted(ALL)


def test_an_empty_row_and_a_corrupt_file_are_dropped_and_named(
    example: Any, s3: Any, caplog: pytest.LogCaptureFixture
) -> None:
    s3.put("train/a.parquet", parquet([1, 2], ["good", ""]))
    s3.put("train/b.parquet", b"this is no parquet")
    with caplog.at_level(logging.WARNING):
        dataset = make(example, s3)
        assert [record["id"] for record in dataset] == [1]
    assert dataset._drop_counters == {"row": 1, "file": 1}
    messages = "\n".join(record.getMessage() for record in caplog.records)
    assert f"demo drop[row]=1: the text is empty in row 1 of row group 0, {s3.url}/train/a.parquet" in messages
    assert f"demo drop[file]=1: {s3.url}/train/b.parquet: " in messages


def test_the_program_stops_half_way_and_resumes(corpus: Any) -> None:
    endpoint = corpus.storage_options["endpoint_url"]
    command = [
        sys.executable,
        str(PROGRAM),
        f"{corpus.url}/train",
        "--endpoint-url",
        endpoint,
        "--stop-after",
        "11",
    ]
    ran = subprocess.run(
        command, env={**os.environ, **corpus.env}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[11].startswith('stopped at {"data_status": [[')
    assert lines[-1] == "done"
    assert sorted(json.loads(line)["id"] for line in lines if line.startswith('{"id"')) == sorted(ALL)
