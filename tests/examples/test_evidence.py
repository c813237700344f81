from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / "examples" / "evidence.py"
Line = dict[str, Any]


@pytest.fixture(scope="module")
def evidence() -> Any:
    spec = importlib.util.spec_from_file_location("evidence", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def life(resumed_at: int, **steps: list[int]) -> list[Line]:
    """Lines of one life: `life(1, s2=[5, 6])` resumed from step 1 and trained on 5 and 6 in step 2."""
    made = [{"epoch": 0, "step": int(name[1:]), "ids": ids} for name, ids in steps.items()]
    return [{"resumed_at": resumed_at}, *made]


def judge(evidence: Any, folder: Path, *ranks: list[Line], ids: range = range(1, 7), torn: bytes = b"") -> Any:
    read = []
    for number, lines in enumerate(ranks):
        path = folder / f"rank{number}.jsonl"
        path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + torn)
        read.append(evidence.read(path))
    return evidence.judge(read, ids, epochs=1)


def test_a_run_without_a_kill_is_good(evidence: Any, tmp_path: Path) -> None:
    verdict = judge(evidence, tmp_path, life(0, s1=[1, 2], s2=[3]), life(0, s1=[4, 5], s2=[6]))
    assert verdict.good
    assert verdict.dead == 0


def test_steps_behind_the_one_resumed_from_are_dead(evidence: Any, tmp_path: Path) -> None:
    lines = life(0, s1=[1, 2], s2=[3, 4], s3=[5]) + life(1, s2=[3, 4], s3=[5, 6])
    verdict = judge(evidence, tmp_path, lines)
    assert verdict.good
    assert verdict.dead == 3


def test_a_life_may_resume_from_before_the_one_before_it(evidence: Any, tmp_path: Path) -> None:
    lines = life(0, s1=[1], s2=[2]) + life(2, s3=[3], s4=[4]) + life(1, s2=[2, 3, 4, 5, 6])
    verdict = judge(evidence, tmp_path, lines)
    assert verdict.good
    assert verdict.dead == 3


def test_a_record_that_comes_again_after_the_kill_is_told(evidence: Any, tmp_path: Path) -> None:
    lines = life(0, s1=[1, 2], s2=[3, 4], s3=[5]) + life(2, s3=[4, 5, 6])
    verdict = judge(evidence, tmp_path, lines)
    assert not verdict.good
    assert verdict.repeated == {0: [4]}
    assert not verdict.lost


def test_a_record_whose_step_died_and_was_not_made_again_is_lost(evidence: Any, tmp_path: Path) -> None:
    lines = life(0, s1=[1, 2], s2=[3, 4]) + life(1, s2=[4, 5, 6])
    verdict = judge(evidence, tmp_path, lines)
    assert verdict.lost == {0: [3]}


def test_a_record_of_no_rank_is_lost_and_one_of_two_ranks_repeated(evidence: Any, tmp_path: Path) -> None:
    verdict = judge(evidence, tmp_path, life(0, s1=[1, 2, 3]), life(0, s1=[3, 4, 5]))
    assert (verdict.lost, verdict.repeated) == ({0: [6]}, {0: [3]})


def test_a_record_that_the_data_do_not_hold_is_told(evidence: Any, tmp_path: Path) -> None:
    assert judge(evidence, tmp_path, life(0, s1=[*range(1, 8)])).foreign == {0: [7]}


def test_an_epoch_that_was_not_trained_is_lost_as_a_whole(evidence: Any, tmp_path: Path) -> None:
    assert judge(evidence, tmp_path, life(0)).lost == {0: [1, 2, 3, 4, 5, 6]}


def test_a_line_cut_short_by_the_kill_counts_as_never_trained_on(evidence: Any, tmp_path: Path) -> None:
    torn = b'{"epoch": 0, "step": 2, "ids": [4, 5, 6'
    verdict = judge(evidence, tmp_path, life(0, s1=[1, 2, 3]), torn=torn)
    assert verdict.lost == {0: [4, 5, 6]}


def test_a_life_begins_on_a_line_of_its_own_behind_one_cut_short(evidence: Any, tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b'{"resumed_at": 0}\n{"epoch": 0, "st')
    with path.open("ab") as file:
        file.write(b'\n{"resumed_at": 0}\n')
    assert [entry.resumed_at for entry in evidence.read(path)] == [0, 0]
