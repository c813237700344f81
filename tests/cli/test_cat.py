from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.command import run, start, told
from tests.loader.data import write_lines, write_parquet, write_tar


def ids(output: str) -> list[int]:
    return [json.loads(line)["id"] for line in output.splitlines()]


@pytest.mark.parametrize("write", [write_parquet, write_lines])
def test_records_come_in_order_over_all_shards(tmp_path: Path, write: Any) -> None:
    write(tmp_path, [20, 3, 0, 30])
    assert ids(run("cat", str(tmp_path)).stdout) == list(range(10))
    assert ids(run("cat", str(tmp_path), "-n", "22").stdout) == list(range(22))
    result = run("cat", str(tmp_path), "-n", "0")
    assert ids(result.stdout) == list(range(53))
    assert (result.exit_code, result.stderr) == (0, "")


def test_one_shard_is_chosen_by_its_number(tmp_path: Path) -> None:
    write_lines(tmp_path, [3, 2])
    assert ids(run("cat", str(tmp_path), "--shard", "1").stdout) == [3, 4]
    refused = run("cat", str(tmp_path), "--shard", "2")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "there are 2 shards, from 0 on" in refused.stderr


def test_columns_are_chosen(tmp_path: Path) -> None:
    write_parquet(tmp_path, [1])
    assert json.loads(run("cat", str(tmp_path), "--columns", "text").stdout) == {"text": "record 0"}
    refused = run("cat", str(tmp_path), "--columns", "nope")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no column 'nope'" in refused.stderr


def test_source_tells_where_a_record_is_from(tmp_path: Path) -> None:
    write_lines(tmp_path, [2])
    second = json.loads(run("cat", str(tmp_path), "--source").stdout.splitlines()[1])
    assert second == {"id": 1, "__shard__": f"file://{tmp_path}/p000.jsonl", "__index__": 10}


def test_bytes_are_counted_for_people_and_written_out_for_programs(tmp_path: Path) -> None:
    write_tar(tmp_path, [1])
    assert json.loads(run("cat", str(tmp_path)).stdout)["json"] == "<1 byte>"
    assert json.loads(run("cat", str(tmp_path), "--json").stdout)["json"] == "MA=="


def test_dates_are_in_iso_8601(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([datetime.date(2024, 5, 6)])}), tmp_path / "a.parquet")
    assert json.loads(run("cat", str(tmp_path)).stdout) == {"at": "2024-05-06"}


def test_a_bad_record_is_told_with_url_and_position_and_counted(tmp_path: Path) -> None:
    write_lines(tmp_path, [4, 2], frozenset({1, 5}))
    result = run("cat", str(tmp_path))
    assert ids(result.stdout) == [0, 2, 3, 4]
    assert f"bad record: file://{tmp_path}/p000.jsonl at byte 10: json:" in result.stderr
    assert result.stderr.splitlines()[-1] == "streamio: 2 bad records left out (json 2)"
    assert result.exit_code == 0


def test_a_corrupt_row_group_is_told_once_and_the_others_are_read(tmp_path: Path) -> None:
    write_parquet(tmp_path, [14])
    path = tmp_path / "p000.parquet"
    group = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    start = group.dictionary_page_offset or group.data_page_offset
    data[start : start + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    path.write_bytes(data)
    result = run("cat", str(tmp_path), "-n", "0")
    assert ids(result.stdout) == list(range(7, 14))
    assert result.stderr.count("row group 0") == 1
    assert result.stderr.splitlines()[-1] == "streamio: 7 bad records left out (corrupt 7)"


def test_a_shard_that_can_not_be_opened_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"this is no parquet file")
    assert run("cat", str(tmp_path)).exit_code == 1  # not one good record
    write_parquet(tmp_path, [2])
    result = run("cat", str(tmp_path))
    assert (result.exit_code, ids(result.stdout)) == (0, [0, 1])
    assert "a.parquet: corrupt: not a parquet file" in result.stderr


def test_shards_behind_the_last_record_wanted_are_not_opened(tmp_path: Path) -> None:
    write_parquet(tmp_path, [10])
    (tmp_path / "z.parquet").write_bytes(b"this is no parquet file")
    result = run("cat", str(tmp_path), "-n", "10")
    assert (ids(result.stdout), result.stderr) == (list(range(10)), "")


def test_records_of_an_s3_server_are_read_by_a_command_of_its_own(s3: Any, tmp_path: Path) -> None:
    write_parquet(tmp_path, [20])
    s3.put("d/p.parquet", (tmp_path / "p000.parquet").read_bytes())
    process = start("cat", f"{s3.url}/d/", "-n", "9", *told(s3.storage_options))
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert ids(output.decode()) == list(range(9))


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    write_lines(tmp_path, [20_000])
    process = start("cat", str(tmp_path), "-n", "0")
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert json.loads(process.stdout.readline()) == {"id": 0}
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
