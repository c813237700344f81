"""The programs of docs/checkpointers.md run as torchrun runs them, and print what stands there."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integrations.launch import launched
from tests.servers.buckets import Bucket

PAGE = (Path(__file__).parents[2] / "docs" / "checkpointers.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
NAMES = ["torch.save", "dcp", "dcp-lines", "lightning", "lightning-lines", "accelerate", "torchdata"]


def test_every_program_of_the_page_is_run() -> None:
    assert len(PROGRAMS) == len(NAMES) == PAGE.count("```python")


@pytest.mark.parametrize(("program", "printed"), PROGRAMS, ids=NAMES)
def test_a_program_prints_what_the_page_says(s3: Bucket, tmp_path: Path, program: str, printed: str) -> None:
    for first, count in ((0, 30), (30, 50)):
        file = io.BytesIO()
        pq.write_table(pa.table({"id": range(first, first + count)}), file, row_group_size=7)
        s3.put(f"train/{first:03}.parquet", file.getvalue())
    for number in range(4):
        lines = [json.dumps({"id": i}) for i in range(15 * number, 15 * number + 15)]
        s3.put(f"lines/{number}.jsonl", "".join(f"{line}\n" for line in lines).encode())
    ranks = 2 if "--nproc-per-node 2" in program else 1
    told = launched(program.replace("s3://corpus", s3.url), ranks, tmp_path, s3.env)
    assert "".join(told) == printed
