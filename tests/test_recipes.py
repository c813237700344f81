"""The programs of docs/recipes.md run, and print what stands there."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers.buckets import Bucket

ROOT = Path(__file__).parents[1]
RECIPES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", (ROOT / "docs" / "recipes.md").read_text(), re.DOTALL)
TORCHRUN = "# torchrun --standalone --nproc-per-node 2 "
NAMES = ["ddp", "validation", "drops", "tars", "steps", "rng", "tensors", "torch"]


def fill(bucket: Bucket) -> None:
    for folder, first, count in (("train", 0, 30), ("train", 30, 50), ("valid", 80, 20)):
        ids = range(first, first + count)
        file = io.BytesIO()
        pq.write_table(pa.table({"id": ids, "text": [f"this is text {i}" for i in ids]}), file, row_group_size=7)
        bucket.put(f"{folder}/{first:03}.parquet", file.getvalue())
    for number, count in enumerate((11, 5, 14)):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for sample in range(count):
                member = tarfile.TarInfo(f"{number}-{sample:03}.txt")
                member.size = 5
                archive.addfile(member, io.BytesIO(b"hello"))
        bucket.put(f"tars/{number}.tar", file.getvalue())


def test_every_program_of_the_page_is_run() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert len(RECIPES) == len(NAMES) == page.count("```python")


@pytest.mark.parametrize(("program", "printed"), RECIPES, ids=NAMES)
def test_a_recipe_prints_what_the_page_says(s3: Bucket, tmp_path: Path, program: str, printed: str) -> None:
    fill(s3)
    script = tmp_path / "program.py"
    script.write_text(program.replace("s3://corpus", s3.url))
    runner = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if TORCHRUN in program else []
    environment = {**os.environ, **s3.env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *runner, str(script)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
