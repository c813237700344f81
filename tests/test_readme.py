"""The program and the five minutes of README.md run as they stand there, over a server of the tests.

examples/train.py, which ends them, is run by tests/examples/.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.servers.buckets import Bucket

ROOT = Path(__file__).parents[1]
FIVE_MINUTES = re.search(r"^## Five minutes$.*?```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S | re.M)
#: What the test does in its own way: the environment, and a server of its own.
ELSE = ("python3 -m venv", "pip install", "python localstack/serve.py", "until sleep", "kill %1")
TESTED_ELSEWHERE = "examples/train.py"


def test_the_five_minutes_train_and_go_on_behind_the_last_save(s3: Bucket, tmp_path: Path) -> None:
    assert FIVE_MINUTES is not None
    for name in ("README.md", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = FIVE_MINUTES[1].replace("s3://corpus", s3.url).replace("s3://runs", f"{s3.url}/runs").splitlines()
    kept = [line for line in commands if not line.startswith(ELSE) and TESTED_ELSEWHERE not in line]
    # The program names its buckets too.
    renamed = f"sed -i 's|s3://corpus|{s3.url}|; s|s3://runs|{s3.url}/runs|' first.py"
    kept.insert(next(i for i, line in enumerate(kept) if line.startswith("sed ")) + 1, renamed)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **s3.env, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(kept)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    # Lines of two ranks may run into each other.
    assert [done.stdout.count(f"resumed from step {step}") for step in (None, 70)] == [2, 2]
    assert done.stdout.count("ended at step 75: ") == 4
