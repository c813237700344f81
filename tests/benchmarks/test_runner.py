from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cases, runner
from benchmarks.case import Case
from benchmarks.data import dataset
from benchmarks.place import Place
from benchmarks.server import shaped, wire_counters

WIRE = next(case for case in cases.wire_floors("loopback") if case.kind == "text" and case.format == "parquet")
DECODER = next(case for case in cases.decode_floors() if case.name == "text/parquet/floor-decode/arrow")
STREAMIO = cases.reader("ours", "text", "parquet", 0)


@pytest.fixture(scope="module")
def found(place: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("results") / "out.json"
    results = runner.run([WIRE, STREAMIO], place, 2, out=out, say=lambda _: None)
    assert json.loads(out.read_text()) == results
    return results


def test_streamio_and_a_floor_agree_on_records_and_ids(found: dict[str, Any], place: Place) -> None:
    data = dataset(place, "text", "parquet")
    assert [each.get("failed") for each in found["results"]] == [None] * 4
    assert {(each["records"], each["id_sum"]) for each in found["results"]} == {(data.records, data.id_sum)}


def test_repeats_are_interleaved(found: dict[str, Any]) -> None:
    order = [(each["repeat"], each["case"]) for each in found["results"]]
    assert order == [(1, WIRE.name), (1, STREAMIO.name), (2, WIRE.name), (2, STREAMIO.name)]


def test_figures_are_told(found: dict[str, Any], place: Place) -> None:
    data = dataset(place, "text", "parquet")
    floor, streamio = found["results"][:2]
    assert floor["bytes_read"] == data.object_bytes
    assert floor["requests"] == len(data.keys)
    assert streamio["bytes_read"] >= data.object_bytes * 0.9
    for each in (floor, streamio):
        assert 0 < each["first_seconds"] <= each["seconds"]
        assert each["mb_per_second"] == pytest.approx(data.payload_bytes / each["seconds"] / 1e6)
        assert each["peak_rss"] > 20e6
        assert each["cpu_seconds"] > 0
    assert found["versions"]["torch"]
    assert found["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("case", "field", "reason"), [(STREAMIO, "records", "records: "), (DECODER, "id_sum", "sum of ids: ")]
)
def test_a_wrong_count_is_a_failure(place: Place, case: Case, field: str, reason: str) -> None:
    data = dataset(place, "text", "parquet")
    wrong = replace(data, **{field: getattr(data, field) + 1})  # type: ignore[arg-type]
    result = runner.run_one(case, place, wrong)
    assert result["failed"].startswith(f"WrongError: {reason}")
    assert "seconds" not in result


def test_a_reader_that_is_not_installed_is_a_failure_with_its_reason(place: Place) -> None:
    case = Case("x", "throughput", "no_such_reader", "text", "parquet")
    result = runner.run_one(case, place, dataset(place, "text", "parquet"))
    assert "No module named 'benchmarks.readers.no_such_reader'" in result["failed"]


def test_a_case_that_does_not_end_is_a_failure(place: Place) -> None:
    result = runner.run_one(STREAMIO, place, dataset(place, "text", "parquet"), deadline=0.2)
    assert result["failed"].startswith("not done after")


def test_the_shaper_delays_paces_and_counts(place: Place) -> None:
    data = dataset(place, "images", "parquet")
    case = Case("wire", "floors", "wire", "images", "parquet", extra={"range_mb": 8, "connections": 1})
    with shaped(place, "cloud") as slow:
        result = runner.run_one(case, slow, data)
    assert result.get("failed") is None
    assert result["wire_requests"] == len(data.keys)
    assert data.object_bytes < result["wire_bytes"] < data.object_bytes * 1.1
    assert result["first_seconds"] > 0.04  # the handshake's round trip, and the request's
    assert result["seconds"] > len(data.keys) * 0.02 + data.object_bytes / 80e6


def test_there_are_no_counters_without_a_shaper(place: Place, tmp_path: Path) -> None:
    assert wire_counters(place) is None
