"""What a batch is to the user, for each kind of output and column type."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import streamio
from streamio.errors import FormatError
from streamio.loader.output import to_batch


def batch() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "int": pa.array([1, 2, 3], pa.int32()),
            "half": pa.array(np.array([1, 2, 3], np.float16)),
            "flag": [True, False, True],
            "gap": [1.5, None, 2.5],
            "hole": [1, None, 3],
            "text": ["a", "b", "c"],
            "word": pa.array(["x", "y", "x"]).dictionary_encode(),
            "point": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float64(), 2)),
            "ragged": pa.array([[1], [], [2, 3]], pa.list_(pa.int64())),
            "day": [datetime.date(2026, 1, day) for day in (1, 2, 3)],
            "struct": [{"a": 1}, {"a": 2}, {"a": 3}],
        }
    )


def test_columns_are_arrays_where_they_are_numbers_else_lists() -> None:
    columns = to_batch(batch(), "columns")
    assert {
        name: (value.dtype.str, value.shape) for name, value in columns.items() if isinstance(value, np.ndarray)
    } == {
        "int": ("<i4", (3,)),
        "half": ("<f2", (3,)),
        "flag": ("|b1", (3,)),
        "gap": ("<f8", (3,)),
        "point": ("<f8", (3, 2)),
        "day": ("<M8[D]", (3,)),
    }
    assert np.isnan(columns["gap"][1])
    assert columns["hole"] == [1, None, 3]
    assert columns["text"] == ["a", "b", "c"]
    assert columns["struct"] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert columns["word"] == ["x", "y", "x"]
    assert [part.tolist() for part in columns["ragged"]] == [[1], [], [2, 3]]


def test_torch_gives_tensors_where_torch_has_the_type() -> None:
    columns = to_batch(batch(), "torch")
    kinds = {name: value.dtype for name, value in columns.items() if isinstance(value, torch.Tensor)}
    assert kinds == {
        "int": torch.int32,
        "half": torch.float16,
        "flag": torch.bool,
        "gap": torch.float64,
        "point": torch.float64,
    }
    assert columns["point"].tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert [part.tolist() for part in columns["ragged"]] == [[1], [], [2, 3]]
    assert isinstance(columns["day"], np.ndarray)


def test_slices_of_a_batch_give_their_own_rows() -> None:
    part = batch().slice(1, 2)
    columns = to_batch(part, "torch")
    assert columns["int"].tolist() == [2, 3]
    assert columns["point"].tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert [one.tolist() for one in columns["ragged"]] == [[], [2, 3]]
    assert columns["text"] == ["b", "c"]


@pytest.mark.parametrize("output", ["columns", "torch"])
def test_numbers_are_not_copied(output: Any) -> None:
    whole = pa.record_batch({"x": np.arange(1000), "p": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2000)), 2)})
    for name, column in to_batch(whole, output).items():
        source = whole[name].buffers()[-1].address
        found = column.data_ptr() if output == "torch" else column.ctypes.data
        assert found == source, name


def test_records_become_columns_stacked_where_they_are_alike() -> None:
    records = [
        {"n": n, "text": str(n), "array": np.full(3, n), "tensor": torch.full((2,), n), "some": None if n else 1}
        for n in range(4)
    ]
    columns = to_batch(records, "columns")
    assert columns["n"].tolist() == [0, 1, 2, 3]
    assert columns["array"].shape == (4, 3)
    assert columns["tensor"].shape == (4, 2)
    assert columns["text"] == ["0", "1", "2", "3"]
    assert columns["some"] == [1, None, None, None]
    assert isinstance(to_batch(records, "torch")["array"], torch.Tensor)
    assert to_batch([{"a": 1}, {"a": 2}], "arrow") == pa.record_batch({"a": [1, 2]})


def test_a_key_that_the_first_record_lacks_is_a_column_too() -> None:
    records = [{"a": 1}, {"a": 2, "b": 3}, {"b": 5}]
    assert to_batch(records, "arrow").to_pydict() == {"a": [1, 2, None], "b": [None, 3, 5]}
    assert to_batch(records, "columns") == {"a": [1, 2, None], "b": [None, 3, 5]}


def test_numbers_that_no_type_has_in_common_are_not_rounded() -> None:
    many = [{"a": 2**63 + 1}, {"a": -1}]
    assert to_batch(many, "columns") == {"a": [2**63 + 1, -1]}
    assert to_batch(many, "torch") == {"a": [2**63 + 1, -1]}
    assert to_batch(many[:1], "columns")["a"].tolist() == [2**63 + 1]


@pytest.mark.parametrize("values", [[1, "x"], [True, 1], ["\ud800"], [2**64, 1], [-1, 2**63]])
def test_values_without_a_type_in_common_are_told_by_their_key(values: list[Any]) -> None:
    with pytest.raises(FormatError, match=r"'key': .*map="):
        to_batch([{"key": value} for value in values], "arrow")


@pytest.mark.parametrize("permuted", [False, True])
def test_tensors_of_one_shape_keep_it(permuted: bool) -> None:
    values = np.arange(24).reshape(4, 3, 2).transpose(0, 2, 1) if permuted else np.arange(24).reshape(4, 2, 3)
    array = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    part = pa.record_batch({"x": array}).slice(1, 2)
    assert to_batch(part, "columns")["x"].tolist() == values[1:3].tolist()
    assert to_batch(part, "torch")["x"].tolist() == values[1:3].tolist()


def test_columns_of_what_is_no_dict_are_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match='map returned a tuple: return a dict, or use output="records"'):
        to_batch([(1, 2)], "columns")


def test_an_unknown_output_is_refused_at_construction(tmp_path: Path) -> None:
    dataset = streamio.StreamingDataset(str(tmp_path))
    with pytest.raises(ValueError, match="output='pandas' is not known; use one of 'records', 'columns'"):
        streamio.DataLoader(dataset, 4, output="pandas")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size=None"):
        streamio.DataLoader(dataset, None, output="arrow")


@pytest.fixture
def shards(tmp_path: Path) -> str:
    start = 0
    for number, count in enumerate((100, 7, 250)):
        ids = list(range(start, start + count))
        table = pa.table({"id": ids, "text": [f"record {i}" for i in ids], "data": [bytes(5000) for _ in ids]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=40)
        start += count
    return str(tmp_path)


def ids_of(batch: Any, output: str) -> list[int]:
    if output == "records":
        return [record["id"] for record in batch]
    ids = batch["id"]
    return ids.to_pylist() if output == "arrow" else ids.tolist()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "columns", [None, ["id", "text"]]
)  # large records and small ones are made in different threads
@pytest.mark.parametrize("workers", [0, 2])
def test_every_output_delivers_the_same_records_in_the_same_order(
    shards: str, workers: int, columns: Any, shuffle: bool
) -> None:
    orders = []
    for output in ("records", "columns", "arrow", "torch"):
        dataset = streamio.StreamingDataset(shards, columns=columns, shuffle=shuffle, window=60, provenance=True)
        with_collate = streamio.DataLoader(
            dataset, 16, output=output, collate_fn=lambda b, o=output: ids_of(b, o), num_workers=workers
        )
        loader = streamio.DataLoader(dataset, 16, output=output, num_workers=workers)
        orders.append([ids_of(batch, output) for batch in loader])
        assert list(with_collate) == orders[-1]
    assert orders[0] == orders[1] == orders[2] == orders[3]
    assert sorted(i for ids in orders[0] for i in ids) == list(range(357))


@pytest.mark.parametrize("output", ["arrow", "columns", "torch"])
def test_a_dropped_slot_is_refilled_in_columns_as_in_records(tmp_path: Path, output: Any) -> None:
    for number in range(3):
        ids = range(number * 20, number * 20 + 20)
        pq.write_table(pa.table({"id": list(ids)}), tmp_path / f"{number}.parquet", compression="none")
    damaged = tmp_path / "1.parquet"
    data = bytearray(damaged.read_bytes())
    data[4:40] = bytes(36)
    damaged.write_bytes(data)

    def delivered(output: Any) -> list[list[int]]:
        dataset = streamio.StreamingDataset(str(tmp_path), shuffle=True, window=30, seed=3)
        return [ids_of(batch, output) for batch in streamio.DataLoader(dataset, 6, output=output)]

    got = delivered(output)
    assert got == delivered("records")
    assert [len(ids) for ids in got] == [6] * 10
    assert {i for ids in got for i in ids} == {*range(20), *range(40, 60)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_gives_columns_of_what_it_returns(shards: str, workers: int) -> None:
    dataset = streamio.StreamingDataset(shards, map=lambda record: {"id": record["id"], "x": np.full(4, record["id"])})
    ids = []
    for batch in streamio.DataLoader(dataset, 16, output="torch", num_workers=workers):
        assert batch["x"].shape == (len(batch["id"]), 4)
        assert torch.equal(batch["x"][:, 0], batch["id"])
        ids += batch["id"].tolist()
    assert sorted(ids) == list(range(357))
