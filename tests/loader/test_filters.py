"""`filters=` through the loader: what is delivered, in every topology and after a resume, what is read and told."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamio
from streamio.errors import DataNotFoundError, FormatError, StatusError, TooManyDropsError
from streamio.observe.drops import FILTERED, NO_MATCH, Drop
from streamio.observe.stats import Stats
from tests.gloo import ranks
from tests.loader.data import ids_of, write_lines, write_tar
from tests.loader.simulated import SimulatedLoader
from tests.test_partitions import write


def write_scores(folder: Path, sizes: list[int], rows: int = 6) -> None:
    """Files whose ids rise, in row groups of `rows`, with a score that does not."""
    first = 0
    for number, size in enumerate(sizes):
        ids = range(first, first + size)
        scores = pa.array([None if i % 11 == 5 else i * 7919 % 10 for i in ids], pa.int64())
        table = pa.table(
            {"id": pa.array(ids, pa.int64()), "score": scores, "text": pa.array(["x" * 9] * size, pa.string())}
        )
        pq.write_table(table, folder / f"p{number:03}.parquet", row_group_size=rows)
        first += size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_scores(tmp_path, [30, 11, 50])
    return tmp_path


def matching(folder: Path, filters: Any) -> list[int]:
    return sorted(pq.read_table(folder, filters=filters)["id"].to_pylist())


terms = st.one_of(
    st.tuples(st.just("score"), st.sampled_from(["==", "!=", "<", ">="]), st.integers(0, 9)),
    st.tuples(st.just("score"), st.sampled_from(["in", "not in"]), st.lists(st.integers(0, 9), min_size=1, max_size=6)),
    st.tuples(st.just("id"), st.sampled_from(["<", ">", ">="]), st.integers(0, 120)),
)


@settings(max_examples=max(100, settings.default.max_examples))
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    filters=st.lists(st.lists(terms, min_size=1, max_size=3), min_size=1, max_size=2),
    end=st.sampled_from(["exact", "even"]),
    shuffle=st.booleans(),
    world=st.integers(1, 3),
    workers=st.sampled_from([0, 2]),
    batch=st.integers(1, 9),
    columns=st.sampled_from([None, ["id"]]),
    data=st.data(),
)
def test_what_is_delivered_is_what_pyarrow_reads(
    sizes: list[int],
    filters: Any,
    end: Any,
    shuffle: bool,
    world: int,
    workers: int,
    batch: int,
    columns: Any,
    data: Any,
) -> None:
    path = Path(tempfile.mkdtemp())
    try:
        write_scores(path, sizes)
        expected = matching(path, filters)
        options = {"filters": filters, "columns": columns, "shuffle": shuffle, "window": 13, "end": end}

        def loader_of(rank: int) -> SimulatedLoader:
            dataset = streamio.StreamingDataset(path, rank=rank, world_size=world, **options)
            return SimulatedLoader(dataset, batch, num_workers=workers)

        loaders = [loader_of(rank) for rank in range(world)]
        try:
            batches = [ids_of(loader) for loader in loaders]
        except DataNotFoundError:
            assert not expected
            return
        except TooManyDropsError:  # an even epoch can't be made of nothing
            assert not expected
            assert end == "even"
            return
        delivered = sorted(i for rank in batches for ids in rank for i in ids)
        stats = sum((loader.stats() for loader in loaders), Stats())
        if end == "exact":
            assert delivered == expected
        else:
            assert sorted(set(delivered)) == expected
            assert len(delivered) == len(expected) + stats.refilled + stats.padded
            assert len({len(rank) for rank in batches}) == 1
            assert all(ids for rank in batches for ids in rank)
        assert stats.dropped == {}
        assert stats.filtered <= sum(sizes) - len(expected)
        rank = data.draw(st.integers(0, world - 1))
        stop = data.draw(st.integers(0, len(batches[rank])))
        first = loader_of(rank)
        iterator = iter(first)
        for _ in range(stop):
            next(iterator)
        state = json.loads(json.dumps(first.state_dict()))
        iterator.close()
        second = loader_of(rank)
        second.load_state_dict(state)
        assert (ids_of(second) if second.epoch == 0 else []) == batches[rank][stop:]
    finally:
        shutil.rmtree(path)


@pytest.mark.parametrize("output", ["records", "arrow"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_worker_processes_deliver_the_same(folder: Path, output: Any, shuffle: bool) -> None:
    filters = [("score", ">", 4), ("id", ">=", 20)]

    def batches(workers: int) -> list[list[int]]:
        dataset = streamio.StreamingDataset(folder, filters=filters, columns=["id"], shuffle=shuffle, end="exact")
        loader = streamio.DataLoader(dataset, 7, num_workers=workers, output=output)
        rows = [batch if output == "records" else batch.to_pylist() for batch in loader]
        assert all(record.keys() == {"id"} for batch in rows for record in batch)
        return ids_of(rows)

    found = sorted(i for ids in batches(2) for i in ids)
    assert found == sorted(i for ids in batches(0) for i in ids) == matching(folder, filters)


def test_row_groups_that_cant_match_are_not_read(tmp_path: Path) -> None:
    text = pa.array([f"{i:08d}" * 100 for i in range(4000)])
    table = pa.table({"id": pa.array(range(4000), pa.int64()), "text": text})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500, compression="none", use_dictionary=False)

    def read(**options: Any) -> Stats:
        loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, end="exact", **options), 100)
        assert sum(map(len, loader)) == loader.stats().records
        return loader.stats()

    whole, part = read(), read(filters=[("id", ">=", 3600)])
    assert (whole.records, part.records, part.filtered) == (4000, 400, 100)
    assert part.bytes_read < whole.bytes_read / 6
    assert part.requests < whole.requests


def test_index_and_positions_are_those_of_the_file(folder: Path) -> None:
    filters = [("id", ">=", 60), ("score", "==", 3)]
    dataset = streamio.StreamingDataset(folder, filters=filters, provenance=True, shuffle=True)
    records = [record for batch in streamio.DataLoader(dataset, 4) for record in batch]
    assert records
    for record in records:
        assert record["__shard__"].endswith("p002.parquet")
        assert record["__index__"] == record["id"] - 41


def test_batches_get_shorter_unless_told_otherwise(folder: Path) -> None:
    filters = [("score", ">", 4)]
    short = streamio.DataLoader(streamio.StreamingDataset(folder, filters=filters), 30)
    lengths = [len(batch) for batch in short]
    assert max(lengths) < 20
    assert short.stats().refilled == 0
    filled = streamio.DataLoader(streamio.StreamingDataset(folder, filters=filters, on_drop="refill"), 30)
    assert [len(batch) for batch in filled][:2] == [30, 30]
    assert filled.stats().refilled > 30


def test_rows_left_out_are_no_faults(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def picky(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] == 8:
            raise streamio.DropRecord(FILTERED, "by the map")
        return record

    dataset = streamio.StreamingDataset(folder, filters=[("score", "<", 5)], map=picky, max_drops=1)
    loader = streamio.DataLoader(dataset, 4)
    with caplog.at_level(logging.INFO):
        delivered = {i for ids in ids_of(loader) for i in ids}
    assert delivered == {*matching(folder, [("score", "<", 5)])} - {8}
    assert loader.stats().dropped == {FILTERED: 1}  # the map's own word for it
    assert loader.stats().filtered == 91 - len(delivered) - 1
    assert [place.message for place in loader.ledger.drops.places()] == ["by the map"]
    assert [record.message for record in caplog.records if NO_MATCH in record.message] == []


def test_a_fraction_of_drops_is_of_what_was_wanted() -> None:
    from streamio.loader.ledger import Ledger

    ledger = Ledger(0.01, lambda drop: None)
    ledger.add_drops([Drop(FILTERED, "s3://b/a", "row group 0", NO_MATCH, 100_000)])
    ledger.add_drops([Drop("json", "s3://b/a", "byte 7", "", 10)])
    assert ledger.stats().filtered == 100_000
    with pytest.raises(TooManyDropsError, match="11 records were dropped"):
        ledger.add_drops([Drop("json", "s3://b/a", "byte 8", "")])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_torch_loader_leaves_them_out_silently(
    folder: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = streamio.StreamingDataset(folder, filters=[("score", ">", 4)], end="exact")
    dataset.prepare()
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    assert sorted(record["id"] for record in loader) == matching(folder, [("score", ">", 4)])
    assert "drop[" not in caplog.text


def test_other_filters_are_another_run(folder: Path) -> None:
    def loader_of(filters: Any) -> streamio.DataLoader:
        return streamio.DataLoader(streamio.StreamingDataset(folder, filters=filters), 4)

    first = loader_of([("score", ">", 4)])
    next(iter(first))
    state = first.state_dict()
    assert json.loads(state["streamio"])["plan"]["filters"] == "(score > 4)"
    for other in (None, [("score", ">", 5)]):
        loader = loader_of(other)
        loader.dataset.prepare()
        with pytest.raises(StatusError, match=r"filters was '\(score > 4\)' and is .*allow=\['filters'\]"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, allow=["filters", "on_drop"])
        assert loader.step == 1
    loader = loader_of([[("score", ">", 4)]])
    loader.load_state_dict(state)
    next(iter(loader))


def test_a_status_holds_no_rows_that_were_left_out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = tmp_path_factory.mktemp("runs")
    loader = streamio.DataLoader(streamio.StreamingDataset(folder, filters=[("score", ">", 4)]), 4)
    batches = ids_of(loader)
    first = streamio.DataLoader(streamio.StreamingDataset(folder, filters=[("score", ">", 4)]), 4)
    iterator = iter(first)
    done = [next(iterator) for _ in range(5)]
    status = json.loads(Path(streamio.Checkpoints(runs).save(first).removeprefix("file://")).read_text())
    assert status["drops"] == {"reasons": {}, "delivered": sum(map(len, done))}
    assert not list(runs.glob("*/streamio-drops.jsonl"))
    iterator.close()
    second = streamio.DataLoader(streamio.StreamingDataset(folder, filters=[("score", ">", 4)]), 4, num_workers=1)
    streamio.Checkpoints(runs).resume(second)
    assert ids_of(done) + ids_of(second) == batches


@pytest.mark.parametrize("filters", [[("id", "<", -1)], pc.field("id") > 1000])
def test_nothing_left_is_told(folder: Path, filters: Any) -> None:
    with pytest.raises(DataNotFoundError, match=r"filters=.*id.* leaves nothing of 3 shards: .* none of 91 records"):
        streamio.StreamingDataset(folder, filters=filters).prepare()


def test_a_filter_on_columns_needs_a_format_that_can(tmp_path: Path) -> None:
    write_lines(tmp_path, [3])
    with pytest.raises(
        FormatError, match=r"takes parquet or Arrow files, and these are jsonl.*DropRecord.*partitions="
    ):
        streamio.StreamingDataset(tmp_path, filters=[("id", ">", 1)]).prepare()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".csv"])
def test_partition_keys_filter_every_format_by_whole_shards(tmp_path: Path, suffix: str) -> None:
    for number, lang in enumerate(["de", "en", "fr"]):
        write(tmp_path / f"lang={lang}" / f"a{suffix}", range(number * 10, number * 10 + 10))
    (tmp_path / "lang=fr" / f"a{suffix}").write_bytes(b"\xff\x00 nothing that could be read")
    filters = [("lang", "in", ["de", "en"])]
    dataset = streamio.StreamingDataset(tmp_path, filters=filters, partitions="hive", shuffle=True, end="exact")
    loader = streamio.DataLoader(dataset, 3)
    records = [record for batch in loader for record in batch]
    assert sorted(int(record["id"]) for record in records) == [*range(20)]
    assert loader.stats().filtered == 0
    assert loader.stats().dropped == {}
    assert len(dataset.get_data_paths()) == 3
    with pytest.raises(DataNotFoundError, match="leaves nothing of 3 shards: none matches by its partition keys"):
        streamio.StreamingDataset(tmp_path, filters=[("lang", "==", "it")], partitions="hive").prepare()


def test_partition_keys_filter_archives(tmp_path: Path) -> None:
    for lang in ("de", "en"):
        (tmp_path / f"lang={lang}").mkdir()
        write_tar(tmp_path / f"lang={lang}", [4])
    dataset = streamio.StreamingDataset(tmp_path, filters=pc.field("lang") == "de", partitions="hive")
    assert [record["lang"] for batch in streamio.DataLoader(dataset, 3) for record in batch] == ["de"] * 4


def test_keys_and_columns_go_together(tmp_path: Path) -> None:
    for number, year in enumerate(["2023", "2024", "__HIVE_DEFAULT_PARTITION__"]):
        (tmp_path / f"year={year}").mkdir()
        write_scores(tmp_path / f"year={year}", [0] * number + [40])
    for filters in (
        [("year", ">=", 2024), ("score", ">", 4)],
        [[("year", "==", 2023), ("id", "<", 7)], [("year", "==", 2024), ("score", "==", 1)]],
        (pc.field("year") == 2023) | (pc.field("score") > 8),
        pc.field("year").is_null() & (pc.field("id") > 20),
    ):
        dataset = streamio.StreamingDataset(tmp_path, filters=filters, partitions={"year": "int32"}, end="exact")
        found = [(record["year"], record["id"]) for batch in streamio.DataLoader(dataset, 7) for record in batch]
        whole = pq.read_table(tmp_path)  # old releases lose null keys where they filter as they read
        whole = whole.set_column(whole.schema.get_field_index("year"), "year", whole["year"].cast(pa.int32()))
        table = whole.filter(pq.filters_to_expression(filters))
        expected = list(zip(table["year"].to_pylist(), table["id"].to_pylist(), strict=True))
        assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_a_sparse_filter_takes_no_time_for_each_row(tmp_path: Path) -> None:
    ids = pa.array(range(60_000), pa.int64())
    pq.write_table(
        pa.table({"id": ids, "score": pc.bit_wise_and(ids, 4095)}), tmp_path / "a.parquet", row_group_size=9000
    )
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, filters=[("score", "==", 7)], shuffle=True), 1000)
    batches = ids_of(loader)
    assert len(batches) == 60
    assert all(batches)
    assert {i for ids in batches for i in ids} == {*range(7, 60_000, 4096)}
    assert loader.stats().refilled == sum(map(len, batches)) - 15


def test_ranks_of_a_group_settle_filters_and_partitions_together(tmp_path: Path) -> None:
    for number, lang in enumerate(["de", "en", "fr"]):
        write(tmp_path / "data" / f"lang={lang}" / "a.parquet", range(number * 30, number * 30 + 30))
    filters = [("lang", "!=", "fr"), ("id", ">=", 10), ("id", "<", 41)]
    told = ranks(
        tmp_path,
        2,
        f"""
import streamio
dataset = streamio.StreamingDataset({str(tmp_path / "data")!r}, filters={filters!r}, partitions="hive", shuffle=True)
loader = streamio.DataLoader(dataset, 4, num_workers=1)
tell([[record["id"], record["lang"]] for batch in loader for record in batch])
stats = loader.stats(all_ranks=True)
tell([len(dataset.prepare().splits), stats.filtered])
""",
    )
    records = {tuple(record) for rank in told for record in rank[0]}
    assert records == {(i, "de" if i < 30 else "en") for i in range(10, 41)}
    assert told[0][1] == told[1][1] == [11, 2]  # groups of three: 9 to 41
