from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cli.command import run, told
from tests.loader.data import write_lines, write_tar


def test_it_tells_what_was_done(tmp_path: Path) -> None:
    write_lines(tmp_path, [5, 6])
    first = run("index", str(tmp_path), "--workers=1")
    assert first.exit_code == 0
    assert first.stdout.startswith(f"file://{tmp_path}/_streamio/index.parquet: 2 shards, 11 records, 2 read, 0 kept, ")
    again = json.loads(run("index", str(tmp_path), "--json").stdout)
    assert (again["shards"], again["read"], again["kept"], again["records"], again["failed"]) == (2, 0, 2, 11, 0)


def test_other_commands_use_the_index(tmp_path: Path) -> None:
    write_tar(tmp_path, [5, 6])
    run("index", str(tmp_path), "--workers=1")
    assert "2 shards of tar, 2 splits, 11 records" in run("plan", str(tmp_path)).stdout
    assert "6 records from 0 on" in run("ls", str(tmp_path), "--splits").stdout


def test_it_may_be_written_elsewhere(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, [5])
    result = run("index", str(data), f"--out={tmp_path}/x.index", "--workers=1")
    assert result.exit_code == 0
    assert (tmp_path / "x.index").exists()
    assert run("index", str(data), f"--out={data}/index.parquet").exit_code == 1


def test_damaged_shards_are_told(tmp_path: Path) -> None:
    write_tar(tmp_path, [5])
    (tmp_path / "q.tar").write_bytes(b"x" * 600)
    first, damaged = run("index", str(tmp_path), "--workers=1").stdout.splitlines()
    assert first.endswith("1 damaged")
    assert damaged.startswith(f"  file://{tmp_path}/q.tar: a tar header is damaged")


def test_of_many_damaged_shards_the_first_are_named_and_json_names_all(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"q{number}.tar").write_bytes(b"x" * 600)
    first, *named, more = run("index", str(tmp_path), "--workers=1").stdout.splitlines()
    assert first.endswith("7 damaged")
    urls = [f"file://{tmp_path}/q{number}.tar" for number in range(7)]
    assert [line.split(": ")[0].strip() for line in named] == urls[:5]
    assert more.strip().startswith("and 2 more")
    again = json.loads(run("index", str(tmp_path), "--json").stdout)
    assert again["failed"] == 7
    assert [(entry["url"], entry["error"].split(":")[0]) for entry in again["damaged"]] == [
        (url, "a tar header is damaged") for url in urls
    ]


def test_what_damaged_shards_say_does_not_act_upon_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "\x1b[2Jq.tar").write_bytes(b"x" * 600)
    shown = run("index", str(tmp_path), "--workers=1").stdout
    assert "\x1b" not in shown
    assert "\\x1b[2Jq.tar" in shown


def test_an_error_is_one_line(tmp_path: Path) -> None:
    result = run("index", str(tmp_path / "nothing"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("streamio: ")
    assert run("index", str(tmp_path), "--workers=0").exit_code == 2


def test_it_runs_over_the_ranks_of_torchrun(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, [5, 6, 7])
    program = tmp_path / "main.py"
    program.write_text("from streamio.cli import main\nif __name__ == '__main__':\n    main()\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run(
        [*command, "index", str(data), "--json", "--workers=1"], capture_output=True, text=True, timeout=120, check=True
    )
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["records"] == 18


def test_an_index_is_made_on_an_s3_server_by_processes(s3: Any) -> None:
    for number in range(4):
        s3.put(f"p{number}.jsonl", b'{"id": 1}\n' * 3)
    result = run("index", s3.url, "--workers=2", "--json", *told(s3.storage_options))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["records"] == 12
    assert s3.get("_streamio/index.parquet")[:4] == b"PAR1"
