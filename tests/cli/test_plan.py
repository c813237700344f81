from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamio import DataLoader, StreamingDataset
from tests.cli.command import run, told
from tests.loader.data import write_lines, write_parquet


def document(*arguments: str) -> dict[str, Any]:
    result = run("plan", *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_table_has_a_line_for_each_worker(tmp_path: Path) -> None:
    write_parquet(tmp_path, [50, 22])
    result = run("plan", str(tmp_path), "--world-size", "2", "--workers", "2", "--batch-size", "4")
    assert result.exit_code == 0
    assert "2 shards of parquet, 12 splits, 72 records" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:5] for line in lines if line and line[0].isdigit()] == [
        ["0", "0", "0,0", "20", "5"],
        ["0", "1", "0,1", "16", "4"],
        ["1", "0", "1,0", "20", "5"],
        ["1", "1", "1,1", "16", "4"],
    ]


def test_the_document_sums_up_to_the_data_set(tmp_path: Path) -> None:
    write_parquet(tmp_path, [50, 23])
    plan = document(str(tmp_path), "--world-size=2", "--workers=2", "--lanes=4,4", "--global-batch-size=8", "--shuffle")
    assert (plan["records"], plan["steps"], plan["padding"], plan["lanes"]) == (73, 10, 3, [4, 4])
    assert sum(share["slots"] for share in plan["reads"]) == 73
    assert sum(lane["bytes"] for share in plan["reads"] for lane in share["lanes"]) == plan["bytes"]
    assert plan["amplification"] == pytest.approx(plan["bytes"] / plan["bytes_needed"], abs=1e-4)


def test_workers_go_by_the_loaders_name_as_well(tmp_path: Path) -> None:
    write_parquet(tmp_path, [50, 23])
    assert document(str(tmp_path), "--num-workers=2") == document(str(tmp_path), "--workers=2")
    assert document(str(tmp_path), "--num-workers=2")["workers"] == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_the_splits_of_a_rank_are_what_a_loader_of_that_rank_delivers(tmp_path: Path, rank: int) -> None:
    write_parquet(tmp_path, [50, 23, 9])
    plan = document(
        str(tmp_path), "--world-size=2", "--workers=0", "--batch-size=3", f"--rank={rank}", "--shuffle",
        "--seed=5", "--epoch=2", "--end=exact",
    )  # fmt: skip
    named = {
        (part["url"], 7 * part["split"] + record)
        for share in plan["reads"]
        for lane in share["lanes"]
        for part in lane["splits"]
        for record in range(part["from"], part["to"])
    }
    dataset = StreamingDataset(
        str(tmp_path), shuffle=True, seed=5, end="exact", provenance=True, rank=rank, world_size=2
    )
    loader = DataLoader(dataset, batch_size=3)
    loader.set_epoch(2)
    batches = list(loader)
    assert {(record["__shard__"], record["__index__"]) for batch in batches for record in batch} == named
    assert sum(share["batches"] for share in plan["reads"]) == len(batches)
    assert {share["rank"] for share in plan["reads"]} == {rank}


def test_one_rank_is_shown_split_by_split(tmp_path: Path) -> None:
    write_parquet(tmp_path, [14])
    shown = run("plan", str(tmp_path), "--world-size=2", "--batch-size=5", "--rank=1").stdout
    assert f"file://{tmp_path}/p000.parquet split 1" in shown
    assert any(line.split()[:3] == ["0", "1,0", "5-6"] for line in shown.splitlines())


def test_a_streamed_format_is_shown_by_splits_and_bytes(tmp_path: Path) -> None:
    write_lines(tmp_path, [3, 2])
    plan = document(str(tmp_path), "--world-size=2", "--end=exact")
    assert (plan["indexed"], plan["records"], plan["steps"]) == (False, None, None)
    assert [(share["splits"], share["bytes"], share["slots"]) for share in plan["reads"]] == [
        (1, 30, None),
        (1, 20, None),
    ]
    shown = run("plan", str(tmp_path), "--world-size=2", "--rank=1")
    assert "p001.jsonl bytes 0-19" in shown.stdout
    assert 'must be told: end="exact"' in shown.stdout


def test_columns_lessen_the_bytes(tmp_path: Path) -> None:
    write_parquet(tmp_path, [50])
    assert document(str(tmp_path), "--columns=id")["bytes"] < document(str(tmp_path))["bytes"]


def test_a_long_table_is_cut_and_says_so(tmp_path: Path) -> None:
    write_parquet(tmp_path, [3])
    shown = run("plan", str(tmp_path), "--world-size=70").stdout
    assert "... and 6 workers more" in shown
    assert len(document(str(tmp_path), "--world-size=70")["reads"]) == 70


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--world-size=3", "--lanes=4,2", "--batch-size=4"], 1, "3 ranks can't share 4 rows"),
        (["--world-size=2", "--global-batch-size=5"], 1, "nearest that can: 4 or 6"),
        (["--lanes=0,1"], 1, "rows of 1 or more"),
        (["--lanes=4"], 2, "as in 8,4"),
        (["--batch-size=1", "--global-batch-size=1"], 2, "give one"),
        (["--world-size=2", "--rank=2"], 2, "there are 2 ranks"),
        (["--world-size=0"], 2, "--world-size"),
        (["--end=never"], 2, "never"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    write_parquet(tmp_path, [3])
    result = run("plan", str(tmp_path), *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("streamio: ")
    assert message in result.stderr


def test_lanes_of_a_streamed_format_can_not_be_chosen(tmp_path: Path) -> None:
    write_lines(tmp_path, [3])
    result = run("plan", str(tmp_path), "--lanes=2,1", "--batch-size=2")
    assert result.exit_code == 1
    assert "one a rank and worker" in result.stderr


def test_a_plan_is_made_of_footers_on_an_s3_server(s3: Any, tmp_path: Path) -> None:
    write_parquet(tmp_path, [20])
    url = s3.put("p.parquet", (tmp_path / "p000.parquet").read_bytes())
    plan = document(s3.url, "--rank=0", *told(s3.storage_options))
    assert plan["records"] == 20
    assert [part["url"] for part in plan["reads"][0]["lanes"][0]["splits"]] == [url] * 3
