"""The loader's face: its place, its length, its arguments, and what it says when they are wrong."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamio
from streamio.errors import StatusError, TooManyDropsError, TopologyError
from tests.loader.data import ids_of, write_lines, write_parquet, write_tar

SIZES = (20, 13, 30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_parquet(tmp_path, SIZES)
    return tmp_path


def test_the_default_batch_is_a_list_of_records(folder: Path) -> None:
    batch = next(iter(streamio.DataLoader(streamio.StreamingDataset(folder), 3)))
    assert batch == [{"id": i, "text": f"record {i}"} for i in range(3)]


def test_columns_are_read_alone(folder: Path) -> None:
    assert next(iter(streamio.DataLoader(streamio.StreamingDataset(folder, columns=["id"]), 2))) == [
        {"id": 0},
        {"id": 1},
    ]


def test_records_tell_where_they_come_from(folder: Path) -> None:
    dataset = streamio.StreamingDataset(folder, provenance=True, shuffle=True)
    records = list(streamio.DataLoader(dataset, None))
    firsts = {"p000": 0, "p001": 20, "p002": 33}
    for record in records:
        shard = record["__shard__"].rsplit("/", 1)[-1].removesuffix(".parquet")
        assert record["__shard__"].startswith("file:///")
        assert firsts[shard] + record["__index__"] == record["id"]


def test_a_maps_randomness_follows_from_seed_epoch_and_slot_alone(folder: Path) -> None:
    def noisy(record: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {**record, "noise": rng.integers(1 << 40)}

    def noise(batch: int, epoch: int, **options: Any) -> dict[int, int]:
        loader = streamio.DataLoader(streamio.StreamingDataset(folder, map=noisy, **options), batch)
        loader.set_epoch(epoch)
        return {record["id"]: record["noise"] for records in loader for record in records}

    one = noise(4, 0)
    assert len(set(one.values())) == 63
    assert noise(9, 0, window=5) == one
    assert noise(4, 1) != one
    assert noise(4, 0, seed=1) != one


def test_global_batch_size_is_shared_by_the_ranks(folder: Path) -> None:
    dataset = streamio.StreamingDataset(folder, rank=1, world_size=3)
    assert len(next(iter(streamio.DataLoader(dataset, global_batch_size=12)))) == 4
    with pytest.raises(
        TopologyError, match=r"global batch of 10 can't be cut evenly into 3 rows.*The nearest that can: 9 or 12"
    ):
        iter(streamio.DataLoader(dataset, global_batch_size=10))


def test_batch_size_and_global_batch_size_are_one_thing(folder: Path) -> None:
    with pytest.raises(ValueError, match="batch_size=4 and global_batch_size=8"):
        streamio.DataLoader(streamio.StreamingDataset(folder), 4, global_batch_size=8)


def test_len_is_what_comes(folder: Path) -> None:
    for options in [{}, {"drop_last": True}]:
        loader = streamio.DataLoader(streamio.StreamingDataset(folder), 5, **options)
        assert len(loader) == len(list(loader)) == (12 if options else 13)
    ranks = [
        streamio.DataLoader(streamio.StreamingDataset(folder, end="exact", rank=rank, world_size=4), 5)
        for rank in range(4)
    ]
    assert [len(loader) for loader in ranks] == [len(list(loader)) for loader in ranks] == [4, 4, 4, 3]


def test_len_of_what_is_not_known_is_a_type_error(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(TypeError, match="endless"):
        len(streamio.DataLoader(streamio.StreamingDataset(folder, end="cycle"), 5))
    (tmp_path / "lines").mkdir()
    write_lines(tmp_path / "lines", SIZES)
    with pytest.raises(TypeError, match="do not tell how many records"):
        len(streamio.DataLoader(streamio.StreamingDataset(tmp_path / "lines"), 5))


def test_streamed_data_on_several_ranks_must_be_told_how_to_end(tmp_path: Path) -> None:
    write_tar(tmp_path, SIZES)
    for end in (None, "even"):
        dataset = streamio.StreamingDataset(tmp_path, rank=0, world_size=2, end=end)  # type: ignore[arg-type]
        with pytest.raises(TopologyError, match=r'end="exact".*end="cycle".*index'):
            iter(streamio.DataLoader(dataset, 2))


def test_step_and_epoch_count_on(folder: Path) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder), 10)
    steps = [(loader.epoch, loader.step) for _ in range(2) for _ in loader]
    assert steps == [(epoch, epoch * 7 + k + 1) for epoch in range(2) for k in range(7)]
    assert (loader.epoch, loader.step) == (2, 14)


def test_an_epoch_broken_off_begins_anew(folder: Path) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder, shuffle=True), 10)
    first = ids_of([next(iter(loader))])
    assert ids_of([next(iter(loader))]) == first
    assert loader.epoch == 0
    assert loader.step == 2


def test_a_state_is_allowed_at_any_time_and_asks_nobody(folder: Path) -> None:
    fresh = streamio.DataLoader(streamio.StreamingDataset(folder / "not-there-yet"), 4)
    state = fresh.state_dict()
    loader = streamio.DataLoader(streamio.StreamingDataset(folder), 4)
    loader.load_state_dict(state)
    assert len(list(loader)) == 16
    assert set(state) == {"streamio"}
    assert isinstance(state["streamio"], str)


def test_a_state_is_checked_at_the_first_iterator_where_nothing_was_listed(folder: Path) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder, seed=1), 4)
    next(iter(loader))
    other = streamio.DataLoader(streamio.StreamingDataset(folder, seed=2), 4)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(StatusError, match="seed was 1 and is 2"):
        iter(other)


@pytest.mark.parametrize("wrong", [{}, {"streamio": "{"}, {"streamio": "[]"}, {"streamio": '{"version": 1}'}])
def test_what_is_no_state_is_refused(folder: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(StatusError, match=r"no state|damaged"):
        streamio.DataLoader(streamio.StreamingDataset(folder), 4).load_state_dict(wrong)


def test_the_state_tells_what_was_delivered_not_what_was_read_ahead(folder: Path) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder), 4, num_workers=2, prefetch_factor=4)
    full = ids_of(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    again = streamio.DataLoader(streamio.StreamingDataset(folder), 4, num_workers=2)
    loader.set_epoch(1)
    again.load_state_dict(state)
    rest = ids_of(again)
    assert len(rest) == len(full) - 1


@pytest.mark.parametrize(("limit", "stops"), [(2, True), (3, False), (0.5, False), (0, True), (None, False)])
def test_max_drops_stops_the_run_and_names_the_worst_places(tmp_path: Path, limit: Any, stops: bool) -> None:
    write_lines(tmp_path, (30, 30), frozenset({3, 5, 40}))
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, max_drops=limit), 4)
    if not stops:
        assert sum(map(len, loader)) == 57
        return
    with pytest.raises(TooManyDropsError, match=rf"max_drops={limit} .*p000.jsonl: \d, the first at byte \d+ \(json: "):
        list(loader)


def test_a_fraction_is_taken_of_what_was_read(tmp_path: Path) -> None:
    write_lines(tmp_path, (5000,), frozenset(range(2000, 2100)))
    with pytest.raises(TooManyDropsError):
        list(streamio.DataLoader(streamio.StreamingDataset(tmp_path, max_drops=0.01), 100))
    assert sum(map(len, streamio.DataLoader(streamio.StreamingDataset(tmp_path, max_drops=0.05), 100))) == 4900


def test_drops_are_logged_in_the_base_contracts_form(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(tmp_path, (30,), frozenset({3}))
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, name="corpus"), 4)
    list(loader)
    assert "corpus drop[json]=1: file://" in caplog.text
    assert loader.stats().dropped == {"json": 1}


def test_stats_count_bytes_of_all_workers(folder: Path) -> None:
    big = folder / "big.parquet"
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": list(range(50_000)), "text": [f"record {i}" * 9 for i in range(50_000)]}), big)
    for workers in (0, 2):
        loader = streamio.DataLoader(streamio.StreamingDataset(big), 512, num_workers=workers)
        list(loader)
        stats = loader.stats()
        assert stats.records == 50_000
        assert stats.bytes_read >= 0.9 * big.stat().st_size
        assert stats.requests > 0
        assert stats.wait_seconds > 0


def test_a_window_is_worth_shuffle_bytes(folder: Path) -> None:
    dataset = streamio.StreamingDataset(folder, shuffle=True, shuffle_bytes=1000)
    spec = dataset.spec(dataset.grid(4, 1), drop_last=False)
    mean = float(spec.splits.nbytes.sum()) / 63  # type: ignore[union-attr]
    assert spec.window == int(1000 / mean)


def test_a_window_that_does_not_fit_in_memory_is_refused_with_the_numbers(folder: Path) -> None:
    dataset = streamio.StreamingDataset(folder, shuffle=True, window=1 << 60)
    assert len(list(streamio.DataLoader(dataset, 8))) == 8  # no lane is that long
    splits = dataset.prepare().splits
    dataset._settled = replace(dataset.prepare(), splits=replace(splits, nbytes=splits.nbytes * 10**12))  # type: ignore[type-var]
    with pytest.raises(ValueError, match=r"windows of \d+ records take some \d+\.\d GiB in 2 lanes"):
        iter(streamio.DataLoader(dataset, 8, num_workers=2))


def test_the_loader_works_as_a_torch_loader_with_a_collate_fn(folder: Path) -> None:
    loader = streamio.DataLoader(
        streamio.StreamingDataset(folder), 8, collate_fn=lambda records: torch.tensor([r["id"] for r in records])
    )
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert torch.cat(list(loader)).tolist() == list(range(63))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("end", "odd"), ("on_drop", "ignore"), ("window", 0), ("shuffle_bytes", -1), ("prefetch_bytes", 0),
        ("max_drops", 1.5), ("max_drops", -1), ("seed", "x"), ("columns", "id"),
        ("urls", []), ("urls", [3]), ("rank", 2),
    ],
)  # fmt: skip
def test_an_option_that_cant_be_is_told_at_construction_by_its_name(folder: Path, option: str, value: Any) -> None:
    options = {"urls": folder, option: value}
    with pytest.raises((ValueError, TypeError), match=option):
        streamio.StreamingDataset(**options)


def test_an_epoch_without_one_good_record_is_an_error(folder: Path) -> None:
    def nothing(record: Any) -> Any:
        raise streamio.DropRecord("no")

    for options in [{"end": "even"}, {"end": "even", "on_drop": "short"}, {"end": "cycle"}]:
        loader = streamio.DataLoader(streamio.StreamingDataset(folder, map=nothing, **options), 4)
        with pytest.raises(TooManyDropsError, match="not one good record"):
            list(loader)


def test_an_endless_stream_without_a_good_record_ends_with_an_error(tmp_path: Path) -> None:
    write_lines(tmp_path, (5, 5), frozenset(range(10)))
    with pytest.raises(TooManyDropsError, match="not one good record"):
        list(streamio.DataLoader(streamio.StreamingDataset(tmp_path, end="cycle"), 4))
    for path in tmp_path.glob("*.jsonl"):
        path.write_text("\n\n")
    with pytest.raises(TooManyDropsError, match="not one good record"):
        list(streamio.DataLoader(streamio.StreamingDataset(tmp_path, end="cycle"), 4))


def test_refilled_records_are_copies(folder: Path) -> None:
    def only_even(record: Any) -> Any:
        if record["id"] % 2:
            raise streamio.DropRecord
        return record

    loader = streamio.DataLoader(streamio.StreamingDataset(folder, map=only_even), 4)
    batch = next(iter(loader))
    assert [record["id"] for record in batch] == [0, 0, 2, 2]
    assert batch[0] is not batch[1]
    assert loader.stats().refilled == 2


def test_a_lost_row_group_is_refilled_from_its_lane(tmp_path: Path) -> None:
    write_parquet(tmp_path, (70,), rows=10)

    def lose(record: Any) -> Any:
        if 20 <= record["id"] < 60:
            raise streamio.DropRecord
        return record

    batches = ids_of(streamio.DataLoader(streamio.StreamingDataset(tmp_path, map=lose), 10))
    assert batches == [list(range(10)), list(range(10, 20)), *[[60] * 10] * 4, list(range(60, 70))]


def stop(record: Any) -> Any:
    if record["id"] == 8:
        raise StopIteration
    return record


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_in_a_map_is_an_error_and_no_end_of_the_epoch(folder: Path, workers: int) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder, map=stop), 2, num_workers=workers)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)
    assert loader.epoch == 0


def test_what_the_loop_did_not_get_is_not_delivered(tmp_path: Path) -> None:
    write_lines(tmp_path, (30,), frozenset({9, 10, 11}))
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path, max_drops=2), 3)
    seen = []
    with pytest.raises(TooManyDropsError):
        seen.extend(i for batch in loader for i in [record["id"] for record in batch])
    again = streamio.DataLoader(streamio.StreamingDataset(tmp_path), 3)
    again.load_state_dict(loader.state_dict())
    seen += [i for batch in ids_of(again) for i in batch]
    assert seen == [i for i in range(30) if i not in {9, 10, 11}]


def test_set_epoch_in_mid_epoch_speaks_of_the_next_iterator(folder: Path) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder), 4)
    full = ids_of(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(0)
    next(iterator)
    loader.set_epoch(5)
    next(iterator)
    assert loader.epoch == 0
    again = streamio.DataLoader(streamio.StreamingDataset(folder), 4)
    again.load_state_dict(loader.state_dict())
    assert ids_of(again) == full[3:]
    list(iterator)
    assert loader.epoch == 5


def test_epochs_of_any_integer_type_are_one_epoch(folder: Path) -> None:
    def order(epoch: Any) -> list[list[int]]:
        loader = streamio.DataLoader(streamio.StreamingDataset(folder, shuffle=True), 4)
        loader.set_epoch(epoch)
        batches = ids_of(loader)
        loader.state_dict()
        return batches

    assert order(np.int64(1)) == order(1) != order(0)
    with pytest.raises(TypeError):
        order(1.0)


def test_a_loop_over_exactly_len_batches_goes_on_with_the_next_epoch(folder: Path) -> None:
    expected = streamio.DataLoader(streamio.StreamingDataset(folder, shuffle=True), 4)
    epochs = [ids_of(expected), ids_of(expected)]
    loader = streamio.DataLoader(streamio.StreamingDataset(folder, shuffle=True), 4)
    assert [ids_of(itertools.islice(loader, len(loader))) for _ in range(2)] == epochs
    assert loader.epoch == 2


def test_an_epoch_chosen_on_the_data_set_counts_too(folder: Path) -> None:
    dataset = streamio.StreamingDataset(folder, shuffle=True)
    loader = streamio.DataLoader(dataset, 4)
    expected = streamio.DataLoader(streamio.StreamingDataset(folder, shuffle=True), 4)
    expected.set_epoch(3)
    dataset.set_epoch(3)
    assert loader.epoch == 3
    assert ids_of(loader) == ids_of(expected)
    assert loader.epoch == 4


def test_a_map_that_returns_nothing_is_told_what_to_do(folder: Path) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder, map=lambda record: None), 4)
    with pytest.raises(TypeError, match="DropRecord"):
        list(loader)


def test_many_refills_are_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_parquet(tmp_path, (4000,), rows=1000)

    def half(record: Any) -> Any:
        if record["id"] % 2:
            raise streamio.DropRecord("odd")
        return record

    list(streamio.DataLoader(streamio.StreamingDataset(tmp_path, map=half), 10))
    assert caplog.text.count("stand in for dropped ones") == 1


def test_a_repr_tells_what_it_is_and_no_secret(folder: Path) -> None:
    url = "https://me:geheim@host/data.parquet?X-Amz-Signature=verborgen"
    dataset = streamio.StreamingDataset(url, storage_options={"key": "schluessel"})
    text = repr(streamio.DataLoader(dataset, 4))
    assert "host/data.parquet" in text
    assert not any(secret in text + dataset.dataset_name for secret in ("geheim", "verborgen", "schluessel"))


def test_large_records_are_not_read_far_ahead_of_a_small_batch(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": list(range(40)), "image": [random.Random(i).randbytes(1 << 20) for i in range(40)]})
    pq.write_table(table, tmp_path / "images.parquet", row_group_size=2, use_dictionary=False)
    dataset = streamio.StreamingDataset(tmp_path, prefetch_bytes=1 << 20)
    loader = streamio.DataLoader(dataset, 1)
    iterator = iter(loader)
    next(iterator)
    assert loader.stats().bytes_read < 15 << 20
    iterator.close()


def test_a_dictionary_does_not_make_a_window_too_large(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": [chr(97 + i % 20) * 4000 for i in range(20_000)]}), tmp_path / "x.parquet")
    dataset = streamio.StreamingDataset(tmp_path, shuffle=True, shuffle_bytes=4 << 20)
    spec = dataset.spec(dataset.grid(1, 1), drop_last=False)
    assert 500 < spec.window < 2000


def test_records_before_a_shard_that_fails_are_delivered(tmp_path: Path) -> None:
    write_lines(tmp_path, (40, 40, 40))
    dataset = streamio.StreamingDataset(tmp_path, retry=streamio.Retry(deadline=0.1))
    dataset.prepare()
    (tmp_path / "p002.jsonl").unlink()
    seen = []
    with pytest.raises(streamio.StreamioError, match=r"p002\.jsonl"):
        seen.extend(record["id"] for batch in streamio.DataLoader(dataset, 10) for record in batch)
    assert seen == list(range(80))


def test_cut_shards_are_read_once(tmp_path: Path) -> None:
    line = '{"id": 1, "text": "' + "x" * 1000 + '"}\n'
    (tmp_path / "large.jsonl").write_text(line * (50 * 1024))
    loader = streamio.DataLoader(streamio.StreamingDataset(tmp_path), 512)
    assert sum(map(len, loader)) == 50 * 1024
    assert loader.stats().bytes_read < 1.02 * (tmp_path / "large.jsonl").stat().st_size


def test_a_state_that_was_refused_leaves_nothing_behind(folder: Path) -> None:
    loader = streamio.DataLoader(streamio.StreamingDataset(folder, seed=1), 4)
    iterator = iter(loader)
    next(iterator)
    other = streamio.DataLoader(streamio.StreamingDataset(folder, seed=2), 4)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(StatusError):
        iter(other)
    assert (other.step, other.epoch) == (0, 0)
    assert len(list(other)) == 16
    iterator.close()


def test_a_loaded_window_holds_although_set_epoch_gave_the_place_up(folder: Path) -> None:
    first = streamio.DataLoader(streamio.StreamingDataset(folder, shuffle=True, shuffle_bytes=500), 4)
    next(iter(first))
    other = streamio.DataLoader(streamio.StreamingDataset(folder, shuffle=True), 4)
    other.load_state_dict(first.state_dict())
    other.set_epoch(1)
    first.set_epoch(1)
    assert ids_of(other) == ids_of(first)


@pytest.mark.parametrize(
    "options", [{"shuffle": 1000}, {"map": "lower"}, {"max_drops": "1%"}, {"urls": None}, {"storage_options": "x"}]
)
def test_an_option_of_a_wrong_type_is_told_by_its_name(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        streamio.StreamingDataset(**{"urls": folder, **options})


def test_text_files_beside_shards_are_taken_for_notes_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_lines(tmp_path, [5])
    (tmp_path / "README.txt").write_text("How this was made\n")
    assert sum(map(len, streamio.DataLoader(streamio.StreamingDataset(tmp_path), 2))) == 5
    assert "1 text files beside shards of another format are left out" in caplog.text
    text = streamio.StreamingDataset(tmp_path / "*.txt")
    assert list(streamio.DataLoader(text)) == [[{"text": "How this was made"}]]


def test_a_shuffled_window_of_a_streamed_lane_holds_records_of_several_shards(tmp_path: Path) -> None:
    write_lines(tmp_path, [50] * 16)
    dataset = streamio.StreamingDataset(tmp_path, shuffle=True, window=64)
    first = next(iter(streamio.DataLoader(dataset, 64)))
    assert len({record["id"] // 50 for record in first}) == 8
