"""What a data set makes of an index: the same records, counted; and nothing wrong through one that is stale."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

import streamio
from streamio.errors import AccessError, DataNotFoundError, FormatError, StatusError, TopologyError
from streamio.index import scan
from streamio.index.build import build_index
from streamio.loader import splits
from streamio.plan import IndexedSplits, StreamedSplits
from tests.gloo import ranks
from tests.loader.data import numbered, write_lines, write_parquet, write_tar
from tests.servers.faults import Rule, status

SIZES = (40, 13, 30)


@pytest.fixture(autouse=True)
def _small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SPLIT_BYTES", 2000)


def write_zst(folder: Path, sizes: Sequence[int]) -> None:
    write_lines(folder, sizes)
    for path in list(folder.glob("*.jsonl")):
        text = path.read_bytes()
        frames = [zstandard.compress(text[low : low + 70]) for low in range(0, len(text), 70)]
        path.with_suffix(".jsonl.zst").write_bytes(b"".join(frames))
        path.unlink()


def write_csv(folder: Path, sizes: Sequence[int]) -> None:
    for number, some in enumerate(numbered(sizes)):
        (folder / f"p{number:03}.csv").write_text("id\n" + "".join(f"{i}\n" for i in some))


WRITERS = [write_lines, write_zst, write_tar]


def loader(folder: Any, batch: int = 4, workers: int = 0, **options: Any) -> streamio.DataLoader:
    return streamio.DataLoader(streamio.StreamingDataset(folder, **options), batch, num_workers=workers)


def ids(record: dict[str, Any]) -> int:
    return int(record["id"] if "id" in record else record["json"])


def all_ids(batches: Any) -> list[int]:
    return [ids(record) for batch in batches for record in batch]


@pytest.mark.parametrize("write", WRITERS)
def test_with_an_index_a_streamed_format_is_counted(tmp_path: Path, write: Any) -> None:
    write(tmp_path, SIZES)
    plain = all_ids(loader(tmp_path))
    build_index(tmp_path, workers=1)
    counted = loader(tmp_path)
    found = counted.dataset.prepare().splits
    assert isinstance(found, IndexedSplits)
    assert len(found) >= 6
    assert len(counted) == 21
    assert all_ids(counted) == plain == [*range(83)]


@pytest.mark.parametrize("write", WRITERS)
def test_ranks_make_equal_steps_over_what_was_streamed(tmp_path: Path, write: Any) -> None:
    write(tmp_path, SIZES)
    build_index(tmp_path, workers=1)
    found = [[*loader(tmp_path, 5, rank=rank, world_size=3, shuffle=True, seed=3, window=10)] for rank in range(3)]
    assert [len(batches) for batches in found] == [6, 6, 6]
    assert {ids(record) for batches in found for batch in batches for record in batch} == {*range(83)}


@pytest.mark.parametrize("write", WRITERS)
def test_a_run_is_taken_up_at_any_batch(tmp_path: Path, write: Any) -> None:
    write(tmp_path, SIZES)
    build_index(tmp_path, workers=1)
    options = {"shuffle": True, "seed": 7, "window": 9}
    whole = [all_ids([batch]) for batch in loader(tmp_path, **options)]
    assert sorted(one for batch in whole for one in batch) == [*range(83)]
    running = loader(tmp_path, **options)
    for k, _ in zip(range(len(whole)), iter(running), strict=False):
        later = loader(tmp_path, **options)
        later.load_state_dict(running.state_dict())
        if k + 1 < len(whole):
            assert [all_ids([batch]) for batch in later] == whole[k + 1 :]


def test_workers_read_through_the_index(tmp_path: Path) -> None:
    write_zst(tmp_path, SIZES)
    build_index(tmp_path, workers=1)
    assert sorted(all_ids(loader(tmp_path, 4, 2, shuffle=True))) == [*range(83)]


@pytest.mark.parametrize("output", ["records", "columns"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_large_splits_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, output: Any
) -> None:
    monkeypatch.setattr(splits, "LARGE", 10)
    ids_of_format = {}
    for name, write in (("lines", write_lines), ("zst", write_zst), ("csv", write_csv)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, SIZES)
        build_index(tmp_path / name, workers=1)
        dataset = streamio.StreamingDataset(tmp_path / name, shuffle=shuffle, window=30, end="exact")
        found = [*streamio.DataLoader(dataset, 4, output=output)]
        values = [batch["id"] if output == "columns" else [record["id"] for record in batch] for batch in found]
        ids_of_format[name] = [int(one) for batch in values for one in batch]
        assert sorted(ids_of_format[name]) == [*range(83)]
    assert shuffle or len({tuple(each) for each in ids_of_format.values()}) == 1


def test_bad_records_and_damage_are_dropped_as_without_an_index(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES, bad=frozenset([3, 50, 51]))
    path = tmp_path / "p002.jsonl"
    packed = zstandard.compress(path.read_bytes()[:200]) + zstandard.compress(path.read_bytes()[200:])
    path.unlink()
    path.with_suffix(".jsonl.zst").write_bytes(packed[:-5])

    def dropped() -> tuple[list[int], Any, Any]:
        reading = loader(tmp_path, end="exact")
        found = sorted(all_ids(reading))
        places = [(drop.reason, drop.url, drop.position, drop.message) for drop in reading.ledger.drops.places()]
        return found, reading.stats().dropped, sorted(places)

    before = dropped()
    assert before[1] == {"json": 3, "corrupt": 1}
    built = build_index(tmp_path, workers=1)
    assert built.failed == 1
    assert dropped() == before


@pytest.mark.parametrize("write", [write_lines, write_zst, write_tar, write_parquet])
def test_records_tell_the_same_places(tmp_path: Path, write: Any) -> None:
    write(tmp_path, SIZES)

    def places() -> list[tuple[str, int]]:
        return [
            (record["__shard__"], record["__index__"])
            for batch in loader(tmp_path, provenance=True)
            for record in batch
        ]

    before = places()
    build_index(tmp_path, workers=1)
    assert places() == before


def test_parquet_has_the_same_splits_with_an_index_and_reads_no_footer(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    for columns in (None, ["id"]):
        build_index(tmp_path, columns=columns)
        settled = [
            streamio.StreamingDataset(tmp_path, columns=columns, index=index).prepare() for index in (None, "auto")
        ]
        (without, with_one) = (each.splits for each in settled)
        assert isinstance(without, IndexedSplits)
        assert isinstance(with_one, IndexedSplits)
        for name in ("shard", "part", "first", "records", "nbytes", "wire"):
            assert getattr(without, name).tolist() == getattr(with_one, name).tolist(), name
        assert settled[0].io.requests > 0
        assert settled[1].io.requests == 0


def test_columns_that_the_index_was_not_made_for_are_counted_by_footers(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    build_index(tmp_path)
    settled = streamio.StreamingDataset(tmp_path, columns=["id"]).prepare()
    plain = streamio.StreamingDataset(tmp_path, columns=["id"], index=None).prepare()
    assert isinstance(settled.splits, IndexedSplits)
    assert isinstance(plain.splits, IndexedSplits)
    assert settled.io.requests == plain.io.requests
    assert settled.splits.nbytes.tolist() == plain.splits.nbytes.tolist()


def test_an_index_by_other_options_is_not_used_where_counts_depend_on_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_csv(tmp_path, SIZES)
    url = build_index(tmp_path, workers=1).url
    assert len(loader(tmp_path, 1, columns=["id"])) == 83
    named = {"format_options": {"column_names": ["id"]}}  # the first row is one like the others then
    assert isinstance(streamio.StreamingDataset(tmp_path, **named).prepare().splits, StreamedSplits)
    assert "has 3 of these shards, but was made by another format, or with other options" in caplog.text
    with pytest.raises(FormatError, match="with other options"):
        streamio.StreamingDataset(tmp_path, index=url, **named).prepare()
    build_index(tmp_path, workers=1, **named)
    assert len(loader(tmp_path, 1, index=url, **named)) == 86


def test_a_corrupt_parquet_file_is_told_from_the_index(tmp_path: Path) -> None:
    write_parquet(tmp_path, SIZES)
    (tmp_path / "p001.parquet").write_bytes(b"PAR1 nothing PAR1")
    without = streamio.StreamingDataset(tmp_path, index=None).prepare().drops
    build_index(tmp_path)
    assert streamio.StreamingDataset(tmp_path).prepare().drops == without
    assert len(without) == 1


def change(folder: Path, suffix: str) -> Path:
    """A shard of another content and size."""
    path = folder / f"p001.{suffix}"
    other = folder / f"p002.{suffix}"
    path.write_bytes(other.read_bytes())
    return path


def test_a_changed_shard_makes_a_streamed_data_set_streamed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_lines(tmp_path, SIZES)
    build_index(tmp_path, workers=1)
    path = change(tmp_path, "jsonl")
    settled = streamio.StreamingDataset(tmp_path).prepare()
    assert isinstance(settled.splits, StreamedSplits)
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (
        f"1 of 3 shards is not in it, or is of another size or version by now: file://{path} (shard 1)" in told.message
    )
    assert "`streamio index` brings it up to date" in told.message
    with pytest.raises(
        TopologyError, match=r"lanes=\(1, 1\) .*is stale: 1 of 3 shards.*brings it up to date. Or leave"
    ):
        len(loader(tmp_path, lanes=(1, 1)))
    with pytest.raises(TopologyError, match=r'Say end="exact".*is stale: 1 of 3 shards.*brings it up to date'):
        len(loader(tmp_path, end="even"))
    assert len(all_ids(loader(tmp_path))) == 100
    build_index(tmp_path, workers=1)
    assert len(loader(tmp_path, 1)) == 100


def test_an_index_that_was_asked_for_must_know_all_shards(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, SIZES)
    out = tmp_path / "index.parquet"
    with pytest.raises(DataNotFoundError, match=r"no such index. `streamio index URL... --out"):
        streamio.StreamingDataset(data, index=str(out)).prepare()
    build_index(data, out, workers=1)
    assert isinstance(streamio.StreamingDataset(data).prepare().splits, StreamedSplits)
    assert isinstance(streamio.StreamingDataset(data, index=str(out)).prepare().splits, IndexedSplits)
    write_lines(data, (*SIZES, 2))
    with pytest.raises(FormatError, match=r"stale: \d of 4 shards"):
        streamio.StreamingDataset(data, index=str(out)).prepare()
    out.write_bytes(b"torn")
    with pytest.raises(FormatError, match="is no index"):
        streamio.StreamingDataset(data, index=str(out)).prepare()


def test_a_changed_parquet_file_is_counted_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_parquet(tmp_path, SIZES)
    build_index(tmp_path)
    change(tmp_path, "parquet")
    shutil.copy(tmp_path / "p000.parquet", tmp_path / "q.parquet")
    found = streamio.StreamingDataset(tmp_path).prepare()
    plain = streamio.StreamingDataset(tmp_path, index=None).prepare()
    assert isinstance(found.splits, IndexedSplits)
    assert isinstance(plain.splits, IndexedSplits)
    assert found.splits.records.tolist() == plain.splits.records.tolist()
    assert found.io.requests == 2
    assert "2 of 4 shards are not in it" in caplog.text


def test_a_folder_that_was_moved_keeps_its_index(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    write_lines(before, SIZES)
    build_index(before, workers=1)
    shutil.copytree(before, after, copy_function=shutil.copy2)
    assert len(loader(after)) == 21


def test_a_part_of_the_data_is_read_through_the_index_of_all(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    url = build_index(tmp_path, workers=1).url
    assert len(loader(tmp_path / "p001.jsonl", 1)) == 13
    assert len(loader(str(tmp_path / "p00[12].jsonl"), 1, index=url)) == 43


@pytest.mark.parametrize("pattern", ["", "*/*.parquet", "**/*.parquet", "**"])
def test_an_index_is_never_taken_for_data(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "en").mkdir()
    write_parquet(tmp_path / "en", SIZES)
    url = str(tmp_path / pattern)
    build_index(url)
    assert (tmp_path / "_streamio" / "index.parquet").exists()
    settled = streamio.StreamingDataset(url).prepare()
    assert len(settled.shards) == 3
    assert settled.io.requests == 0


def test_no_index_is_used_where_none_is_wanted(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    build_index(tmp_path, workers=1)
    assert isinstance(streamio.StreamingDataset(tmp_path, index=None).prepare().splits, StreamedSplits)
    with pytest.raises(TypeError, match="index=3 must be the URL"):
        streamio.StreamingDataset(tmp_path, index=3)  # type: ignore[arg-type]


def test_a_miss_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(tmp_path, SIZES)
    streamio.StreamingDataset(tmp_path).prepare()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_damaged_index_is_told_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(tmp_path, SIZES)
    build_index(tmp_path, workers=1)
    (tmp_path / "_streamio" / "index.parquet").write_bytes(b"torn")
    assert isinstance(streamio.StreamingDataset(tmp_path).prepare().splits, StreamedSplits)
    assert "The data are read without it." in caplog.text


def test_filters_go_by_footers_and_by_partitions(tmp_path: Path) -> None:
    for lang in ("de", "en"):
        (tmp_path / f"lang={lang}").mkdir()
        write_lines(tmp_path / f"lang={lang}", SIZES)
    build_index(tmp_path, workers=1)
    chosen = loader(tmp_path, partitions="hive", filters=[("lang", "==", "en")])
    records = [record for batch in chosen for record in batch]
    assert isinstance(chosen.dataset.prepare().splits, IndexedSplits)
    assert (len(records), {record["lang"] for record in records}) == (83, {"en"})
    (tmp_path / "p").mkdir()
    write_parquet(tmp_path / "p", SIZES)
    build_index(tmp_path / "p")
    few = loader(tmp_path / "p", filters=[("id", "<", 5)])
    assert all_ids(few) == [0, 1, 2, 3, 4]
    assert few.dataset.prepare().io.requests > 0


def test_a_state_of_the_other_kind_of_plan_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    streamed = loader(tmp_path)
    next(iter(streamed))
    build_index(tmp_path, workers=1)
    with pytest.raises(StatusError, match="kind of plan"):
        iter(_loaded(loader(tmp_path), streamed.state_dict()))


def _loaded(fresh: streamio.DataLoader, state: dict[str, str]) -> streamio.DataLoader:
    fresh.load_state_dict(state)
    return fresh


def test_one_rank_reads_the_index_for_all(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, (20, 20))
    build_index(data, workers=1)
    program = f"""
import streamio
from streamio.storage import objects
read, get = [], objects.get
objects.get = lambda url, *args, **options: read.append(url) or get(url, *args, **options)
loader = streamio.DataLoader(streamio.StreamingDataset({str(data)!r}), 3)
tell(len(loader))
tell(sorted(record["id"] for batch in loader for record in batch))
tell(len(read))
"""
    (first, mine, reads), (second, others, none) = ranks(tmp_path, 2, program)
    assert first == second == 7
    assert {*mine, *others} == {*range(40)}
    assert (reads, none) == (1, 0)


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_a_data_set_finds_its_index_on_a_server(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bucket = request.getfixturevalue(store)
    write_zst(tmp_path, SIZES)
    for path in tmp_path.iterdir():
        bucket.put(f"data/{path.name}", path.read_bytes())
    url, options = f"{bucket.url}/data", bucket.storage_options
    build_index(url, storage_options=options, workers=1)
    reading = loader(url, storage_options=options, shuffle=True, engine="fsspec")  # later tests fork this process
    assert len(reading) == 21
    assert sorted(all_ids(reading)) == [*range(83)]
    bucket.put("data/p001.jsonl.zst", zstandard.compress(b'{"id": 1}\n'))
    with pytest.raises(TypeError, match="streamio index"):
        len(loader(url, storage_options=options))


def test_the_default_place_is_asked_for_once(faulty: Any, tmp_path: Path) -> None:
    write_parquet(tmp_path, (7, 7))
    for path in tmp_path.iterdir():
        faulty.put(f"data/{path.name}", path.read_bytes())
    build_index(f"{faulty.url}/data", storage_options=faulty.storage_options)
    before = len(faulty.proxy.requests)
    streamio.StreamingDataset(f"{faulty.url}/data", storage_options=faulty.storage_options).prepare()
    gets = [one for one in faulty.proxy.requests[before:] if one.method == "GET" and "index.parquet" in one.path]
    assert len(gets) == 1


def test_an_index_that_may_not_be_seen_is_none_unless_it_was_asked_for(faulty: Any) -> None:
    faulty.put("data/p.jsonl", b'{"id": 1}\n')
    url, options = f"{faulty.url}/data", faulty.storage_options
    index = build_index(url, storage_options=options, workers=1).url
    faulty.proxy.add(Rule(status(403), method="GET|HEAD", path="_streamio/", times=None))
    assert isinstance(streamio.StreamingDataset(url, storage_options=options).prepare().splits, StreamedSplits)
    with pytest.raises(AccessError, match=r"_streamio/index\.parquet"):
        streamio.StreamingDataset(url, storage_options=options, index=index).prepare()


def test_an_index_that_can_not_be_read_stops_the_start(faulty: Any) -> None:
    faulty.put("data/p.jsonl", b'{"id": 1}\n')
    url, options = f"{faulty.url}/data", faulty.storage_options
    build_index(url, storage_options=options, workers=1)
    faulty.proxy.add(Rule(status(503), method="GET|HEAD", path="_streamio/", times=None))
    retry = streamio.Retry(deadline=1.0)  # a run must not be streamed because of a bad minute
    with pytest.raises(streamio.StreamioError, match=r"_streamio/index\.parquet"):
        streamio.StreamingDataset(url, storage_options=options, retry=retry).prepare()


def test_counts_that_do_not_fit_are_damage_of_their_split(tmp_path: Path) -> None:
    write_lines(tmp_path, (40,))
    build_index(tmp_path, workers=1)
    reading = loader(tmp_path, 1, end="exact")
    settled = reading.dataset.prepare()
    assert isinstance(settled.splits, IndexedSplits)
    first = int(settled.splits.records[0])
    path = tmp_path / "p000.jsonl"
    text = bytearray(path.read_bytes())
    text[9:10] = b" "  # a line less, behind the listing's back, in the same place
    path.write_bytes(text)
    os.utime(path, ns=(int(settled.shards[0].version or 0),) * 2)
    assert all_ids(reading) == [*range(first, 40)]
    assert reading.stats().dropped == {"corrupt": first}
    (drop,) = reading.ledger.drops.places()
    assert "where the index says" in drop.message


def test_every_slot_is_delivered_once_over_ranks_and_resumes(tmp_path: Path) -> None:
    write_zst(tmp_path, (50, 31, 7))
    build_index(tmp_path, workers=1)
    found: list[int] = []
    state = None
    for _ in range(6):
        reading = loader(tmp_path, 3, shuffle=True, end="exact", window=8)
        if state is not None:
            reading.load_state_dict(state)
        for _, batch in zip(range(7), iter(reading), strict=False):
            found += all_ids([batch])
            state = reading.state_dict()
        if reading.epoch:
            break
    assert sorted(found) == [*range(88)]


def test_an_empty_index_is_damaged_and_not_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, named = tmp_path / "data", tmp_path / "i.parquet"
    data.mkdir()
    write_lines(data, SIZES)
    named.write_bytes(b"")
    with pytest.raises(FormatError, match=r"i\.parquet.*streamio index"):
        streamio.StreamingDataset(data, index=named).prepare()
    (data / "_streamio").mkdir()
    (data / "_streamio" / "index.parquet").write_bytes(b"")
    assert isinstance(streamio.StreamingDataset(data).prepare().splits, StreamedSplits)
    assert "The data are read without it" in caplog.text
