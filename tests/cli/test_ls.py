from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import run, told
from tests.loader.data import write_lines, write_parquet


def test_shards_are_listed_with_number_size_version_and_total(tmp_path: Path) -> None:
    write_lines(tmp_path, [3, 2])
    result = run("ls", str(tmp_path))
    first, second, total = result.stdout.splitlines()
    assert result.exit_code == 0
    assert first.split()[0] == "0"
    assert first.endswith(f"file://{tmp_path}/p000.jsonl")
    assert second.endswith("p001.jsonl")
    assert total == "2 shards, 50 B"


def test_a_line_of_json_for_each_shard(tmp_path: Path) -> None:
    write_lines(tmp_path, [3, 2])
    lines = [json.loads(line) for line in run("ls", str(tmp_path), "--json").stdout.splitlines()]
    assert [(line["number"], line["size"]) for line in lines] == [(0, 30), (1, 20)]
    assert lines[0]["url"] == f"file://{tmp_path}/p000.jsonl"
    assert lines[0]["version"]


def test_splits_of_parquet_have_their_records(tmp_path: Path) -> None:
    write_parquet(tmp_path, [10, 0, 4])
    shown = run("ls", str(tmp_path), "--splits").stdout
    assert "3 records from 7 on" in shown
    assert shown.splitlines()[-1].endswith("3 splits, 14 records")
    lines = [json.loads(line) for line in run("ls", str(tmp_path), "--splits", "--json").stdout.splitlines()]
    assert [[(s["split"], s["first"], s["records"]) for s in line["splits"]] for line in lines] == [
        [(0, 0, 7), (1, 7, 3)],
        [],
        [(0, 0, 4)],
    ]


def test_splits_of_lines_are_byte_ranges(tmp_path: Path) -> None:
    write_lines(tmp_path, [3])
    assert "bytes 0 to 30" in run("ls", str(tmp_path), "--splits").stdout
    (line,) = run("ls", str(tmp_path), "--splits", "--json").stdout.splitlines()
    assert json.loads(line)["splits"] == [{"start": 0, "stop": 30, "bytes": 30}]


def test_a_shard_that_is_no_parquet_is_named_with_its_reason(tmp_path: Path) -> None:
    write_parquet(tmp_path, [3])
    (tmp_path / "q.parquet").write_bytes(b"this is no parquet file")
    result = run("ls", str(tmp_path), "--splits")
    assert result.exit_code == 0
    assert "can't be read: not a parquet file" in result.stdout
    lines = [json.loads(line) for line in run("ls", str(tmp_path), "--splits", "--json").stdout.splitlines()]
    assert "not a parquet file" in lines[1]["error"]


def test_a_format_by_name_takes_files_of_any_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text('{"id": 1}\n')
    assert run("ls", str(tmp_path)).exit_code == 1
    assert "1 shard," in run("ls", str(tmp_path), "--format", "jsonl").stdout


def test_objects_of_an_s3_server_are_listed_with_their_etags(s3: Any) -> None:
    s3.put("a/1.jsonl", b'{"id": 1}\n')
    result = run("ls", f"{s3.url}/**/*.jsonl", "--json", *told(s3.storage_options))
    (line,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert line["url"] == f"{s3.url}/a/1.jsonl"
    assert line["version"] == s3.etag("a/1.jsonl").strip('"')


def test_a_refused_credential_is_an_error_that_does_not_show_it(s3: Any) -> None:
    s3.put("1.jsonl", b"{}\n")
    options = {**s3.storage_options, "secret": "wrongwrongwrong"}
    result = run("ls", s3.url, *told(options))
    assert result.exit_code == 1
    assert result.stderr.startswith("streamio: ")
    assert "wrongwrong" not in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("secret", ["hunter2hunter2", '"hunter2hunter2"'])
def test_a_traceback_shows_no_credential(secret: str) -> None:
    result = run("ls", "s3://bucket/x", f"--storage-option=secret_nobody_knows={secret}", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "hunter2" not in result.output
