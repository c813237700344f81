from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamio import DataLoader, StreamingDataset, build_index
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


def test_the_index_beside_the_data_counts_unless_it_is_switched_off(tmp_path: Path) -> None:
    write_lines(tmp_path, [50, 23])
    build_index(tmp_path, workers=1)
    plan = document(str(tmp_path), "--world-size=2", "--workers=2", "--global-batch-size=8")
    assert (plan["indexed"], plan["records"], plan["steps"]) == (True, 73, 10)
    plan = document(
        str(tmp_path), "--world-size=2", "--workers=2", "--global-batch-size=8", "--end=exact", "--index=none"
    )
    assert (plan["indexed"], plan["records"], plan["steps"]) == (False, None, None)


def test_what_is_planned_through_a_named_index_is_what_a_loader_delivers(tmp_path: Path) -> None:
    data, index = tmp_path / "data", tmp_path / "lines.index"
    data.mkdir()
    write_lines(data, [50, 23, 9])
    assert not document(str(data))["indexed"]
    build_index(data, index, workers=1)
    plan = document(
        str(data), f"--index={index}", "--world-size=2", "--batch-size=3", "--rank=1", "--shuffle", "--seed=5"
    )
    held = {f"file://{data}/p{number:03}.jsonl": first for number, first in enumerate((0, 50, 73))}
    parts = [part for share in plan["reads"] for lane in share["lanes"] for part in lane["splits"]]
    assert {part["split"] for part in parts} == {0}  # small shards are one split each
    planned = [held[part["url"]] + record for part in parts for record in range(part["from"], part["to"])]
    dataset = StreamingDataset(data, index=str(index), shuffle=True, seed=5, rank=1, world_size=2)
    assert sorted(record["id"] for batch in DataLoader(dataset, batch_size=3) for record in batch) == sorted(planned)


def test_an_index_that_does_not_fit_is_told(tmp_path: Path) -> None:
    data, index = tmp_path / "data", tmp_path / "lines.index"
    data.mkdir()
    write_lines(data, [5])
    build_index(data, workers=1)
    build_index(data, index, workers=1)
    (data / "p001.jsonl").write_text('{"id": 5}\n')
    found = run("plan", str(data))
    assert found.exit_code == 0
    assert "records not counted" in found.stdout
    assert "is stale: 1 of 2 shards is not in it" in found.stderr
    named = run("plan", str(data), f"--index={index}")
    assert (named.exit_code, named.stdout) == (1, "")
    assert f"file://{index} is stale" in named.stderr
    missing = run("plan", str(data), f"--index={tmp_path}/nothing")
    assert missing.exit_code == 1
    assert "there is no such index" in missing.stderr


def test_row_groups_that_filters_rule_out_are_not_planned(tmp_path: Path) -> None:
    write_parquet(tmp_path, [50, 23])
    given = '[["id", ">=", 30], ["id", "<", 58]]'
    plan = document(str(tmp_path), f"--filters={given}", "--batch-size=4", "--rank=0", "--end=exact")
    whole = document(str(tmp_path))
    assert plan["bytes"] < whole["bytes"]
    named = [
        (part["url"], 7 * part["split"] + record)
        for lane in plan["reads"][0]["lanes"]
        for part in lane["splits"]
        for record in range(part["from"], part["to"])
    ]
    dataset = StreamingDataset(
        tmp_path, filters=[("id", ">=", 30), ("id", "<", 58)], provenance=True, end="exact", rank=0, world_size=1
    )
    loader = DataLoader(dataset, batch_size=4)
    assert (plan["records"], plan["steps"]) == (len(named), len(loader))
    assert len(named) == 22 + 14  # of one shard the rows from 28 to its end, of the other two row groups
    urls = [shard.url for shard in dataset.prepare().shards]
    wanted = [(url, row) for url, row in named if 30 <= (0, 50)[urls.index(url)] + row < 58]
    assert [(record["__shard__"], record["__index__"]) for batch in loader for record in batch] == wanted


def test_a_long_table_is_cut_and_says_so(tmp_path: Path) -> None:
    write_parquet(tmp_path, [3])
    shown = run("plan", str(tmp_path), "--world-size=70").stdout
    assert "... and 6 workers more" in shown
    assert len(document(str(tmp_path), "--world-size=70")["reads"]) == 70


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--world-size=3", "--lanes=4,2", "--batch-size=4"], 1, "the rows have to be a multiple of the 3 ranks"),
        (["--world-size=2", "--global-batch-size=5"], 1, "nearest that can: 4 or 6"),
        (["--lanes=0,1"], 1, "give rows and columns of 1 or more"),
        (["--lanes=4"], 2, "as in 8,4"),
        (["--batch-size=1", "--global-batch-size=1"], 2, "give one"),
        (["--world-size=2", "--rank=2"], 2, "there are 2 ranks"),
        (["--world-size=0"], 2, "--world-size"),
        (["--end=never"], 2, "never"),
        (["--index="], 2, "--index"),
        (["--filters=id>3"], 2, "--filters: takes JSON"),
        (['--filters=[["id", ">", 3]]'], 1, "leaves nothing"),
        (['--filters=[["nope", ">", 3]]'], 1, "nope"),
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


def test_folders_are_columns_where_partitions_says_so(tmp_path: Path) -> None:
    for lang in ("de", "en"):
        (tmp_path / f"lang={lang}").mkdir()
        write_parquet(tmp_path / f"lang={lang}", [20])
    german = '--filters=[["lang", "==", "de"]]'
    assert document(str(tmp_path), german, "--partitions=hive")["records"] == 20
    assert run("plan", str(tmp_path), german).exit_code == 1
    assert run("plan", str(tmp_path), "--partitions=other").exit_code == 2
