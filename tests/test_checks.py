"""Options of a wrong type or value are told where they come in, by name and value; ints may be of any integer type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamio
from streamio.errors import TopologyError
from streamio.index.build import build_index
from tests.gloo import ranks

Case = tuple[dict[str, Any], type[Exception], str]


def dataset(**options: Any) -> Any:
    return streamio.StreamingDataset(**{"urls": "/nowhere/data", **options})


def loader(**options: Any) -> Any:
    return streamio.DataLoader(dataset(), **options)


def mixture(**options: Any) -> Any:
    return streamio.Mixture(**{"sources": {"a": dataset()}, **options})


def checkpoints(**options: Any) -> Any:
    return streamio.Checkpoints("/nowhere/runs", **options)


def pack(**options: Any) -> Any:
    return streamio.pack(loader(), **{"length": 8, **options})


def index(**options: Any) -> Any:
    return build_index(**{"urls": "/nowhere/data", **options})


def skip_to(**options: Any) -> Any:
    return loader().skip_to(**options)


def set_epoch(**options: Any) -> Any:
    return loader().set_epoch(**options)


def set_epoch_of_a_dataset(**options: Any) -> Any:
    return dataset().set_epoch(**options)


def set_epoch_of_a_mixture(**options: Any) -> Any:
    return mixture().set_epoch(**options)


EPOCHS: list[Case] = [
    ({"epoch": "1"}, TypeError, "epoch='1' must be an int of 0 or more"),
    ({"epoch": 1.0}, TypeError, "epoch=1.0 must be an int"),
    ({"epoch": True}, TypeError, "epoch=True must be an int"),
    ({"epoch": -1}, ValueError, "epoch=-1 must be 0 or more"),
]

TABLES: dict[Callable[..., Any], list[Case]] = {
    dataset: [
        ({"urls": 3}, TypeError, "urls=3 must be a URL or a list of URLs"),
        ({"urls": []}, ValueError, "urls is empty"),
        ({"urls": ["a", 3]}, TypeError, "urls holds 3, which is no URL"),
        ({"columns": [1]}, TypeError, r"columns=\[1\] must be a list of names"),
        ({"columns": 3}, TypeError, "columns=3 must be a list of names"),
        ({"columns": "id"}, TypeError, r"columns='id' must be a list of names, as in columns=\['id'\]"),
        ({"columns": []}, ValueError, r"columns=\[\] must hold one name at least"),
        ({"format": 3}, TypeError, "format=3 must be the name of a format"),
        ({"name": 3}, TypeError, "name=3 must be text"),
        ({"seed": True}, TypeError, "seed=True must be an int"),
        ({"seed": "x"}, TypeError, "seed='x' must be an int"),
        ({"shuffle": 1}, TypeError, "shuffle=1 must be True or False"),
        ({"provenance": "yes"}, TypeError, "provenance='yes' must be True or False"),
        ({"map": 3}, TypeError, "map=3 must be a function of one record"),
        ({"shuffle_bytes": 1e6}, TypeError, "shuffle_bytes=1000000.0 must be an int of 1 or more"),
        ({"shuffle_bytes": 0}, ValueError, "shuffle_bytes=0 must be 1 or more"),
        ({"prefetch_bytes": 1e6}, TypeError, "prefetch_bytes=1000000.0 must be an int of 1 or more"),
        ({"prefetch_bytes": -1}, ValueError, "prefetch_bytes=-1 must be 1 or more"),
        ({"window": "5"}, TypeError, "window='5' must be an int of 1 or more, or None"),
        ({"window": 0}, ValueError, "window=0 must be 1 or more, or None"),
        ({"max_records": 1.5}, TypeError, "max_records=1.5 must be an int of 1 or more, or None"),
        ({"max_records": np.array([1, 2])}, TypeError, r"max_records=array\(\[1, 2\]\) must be an int"),
        ({"max_records": 0}, ValueError, "max_records=0 must be 1 or more"),
        ({"lanes": 2}, TypeError, "lanes=2 must be two ints"),
        ({"lanes": (1, 2, 3)}, TypeError, r"lanes=\(1, 2, 3\) must be two ints"),
        ({"lanes": (1, True)}, TypeError, r"lanes=\(1, True\) must be two ints"),
        ({"lanes": (0, 1)}, ValueError, r"lanes=\(0, 1\): give rows and columns of 1 or more"),
        ({"retry": {"deadline": 3}}, TypeError, r"retry=\{'deadline': 3\} must be a streamio.Retry"),
        ({"decode": 3}, TypeError, "decode=3 must be a mapping of extensions to functions"),
        ({"decode": {"json": 3}}, TypeError, r"decode=\{'json': 3\} must be a mapping of extensions to functions"),
        ({"format_options": [1]}, TypeError, r"format_options=\[1\] must be a mapping of option names to values"),
        ({"max_drops": True}, TypeError, "max_drops=True must be a count"),
        ({"max_drops": "1%"}, TypeError, "max_drops='1%' must be a count"),
        ({"max_drops": 1.5}, ValueError, "max_drops=1.5 must be a count"),
        ({"max_drops": -1}, ValueError, "max_drops=-1 must be a count"),
        ({"max_drops": float("nan")}, ValueError, "max_drops=nan must be a count"),
        ({"end": "odd"}, ValueError, "end='odd' is not known; use one of 'even', 'exact', 'cycle', None"),
        ({"end": 3}, TypeError, "end=3 is not known"),
        ({"on_drop": ["refill"]}, TypeError, r"on_drop=\['refill'\] is not known; use one of 'refill', 'short', None"),
        ({"on_change": None}, ValueError, "on_change=None is not known; use one of 'error', 'next_epoch'"),
        ({"on_topology_change": None}, ValueError, "on_topology_change=None is not known; use one of 'deal', 'raise'"),
        ({"engine": 3}, TypeError, "engine=3 is not known; use one of 'auto', 'obstore', 'fsspec'"),
        ({"engine": "boto"}, ValueError, "engine='boto' is not known"),
        ({"rank": "1", "world_size": 2}, TypeError, "rank='1' must be an int"),
        ({"rank": 1, "world_size": 2.0}, TypeError, "world_size=2.0 must be an int"),
        ({"rank": 2, "world_size": 2}, TopologyError, "rank=2 is not a rank of world_size=2"),
        ({"device_mesh": 3}, TypeError, "device_mesh=3 must be a torch DeviceMesh"),
        ({"process_group": 3}, TypeError, "process_group=3 must be a torch ProcessGroup"),
        ({"dp_dims": 3}, TypeError, "dp_dims=3 must be a list of names"),
        ({"group_timeout": "x"}, TypeError, "group_timeout='x' must be a finite number above 0"),
        ({"group_timeout": 0}, ValueError, "group_timeout=0 must be a finite number above 0"),
        ({"group_timeout": float("inf")}, ValueError, "group_timeout=inf must be a finite number above 0"),
    ],
    loader: [
        ({"batch_size": "8"}, TypeError, "batch_size='8' must be an int of 1 or more, or None"),
        ({"batch_size": True}, TypeError, "batch_size=True must be an int"),
        ({"batch_size": 0}, ValueError, "batch_size=0 must be 1 or more, or None"),
        ({"global_batch_size": 8.0}, TypeError, "global_batch_size=8.0 must be an int"),
        ({"global_batch_size": 0}, ValueError, "global_batch_size=0 must be 1 or more"),
        ({"num_workers": "2"}, TypeError, "num_workers='2' must be an int of 0 or more"),
        ({"num_workers": 1.5}, TypeError, "num_workers=1.5 must be an int of 0 or more"),
        ({"num_workers": -1}, ValueError, "num_workers=-1 must be 0 or more"),
        ({"output": 3}, TypeError, "output=3 is not known; use one of 'records'"),
        ({"collate_fn": 3}, TypeError, "collate_fn=3 must be a function of a batch"),
        ({"drop_last": 1}, TypeError, "drop_last=1 must be True or False"),
        ({"pin_memory": "x"}, TypeError, "pin_memory='x' must be True or False"),
        ({"persistent_workers": 0}, TypeError, "persistent_workers=0 must be True or False"),
        ({"timeout": "x"}, TypeError, "timeout='x' must be a finite number of 0 or more"),
        ({"timeout": True}, TypeError, "timeout=True must be a finite number"),
        ({"timeout": -1}, ValueError, "timeout=-1 must be a finite number of 0 or more"),
        ({"worker_init_fn": 3}, TypeError, "worker_init_fn=3 must be a function of a worker's number"),
        ({"generator": 3}, TypeError, "generator=3 must be a torch.Generator"),
        ({"prefetch_factor": "2", "num_workers": 1}, TypeError, "prefetch_factor='2' must be an int"),
        ({"prefetch_factor": 0, "num_workers": 1}, ValueError, "prefetch_factor=0 must be 1 or more, or None"),
        ({"threads": 1.5}, TypeError, "threads=1.5 must be an int of 0 or more"),
        ({"threads": -1}, ValueError, "threads=-1 must be 0 or more"),
        ({"restart_workers": "x"}, TypeError, "restart_workers='x' must be an int of 0 or more"),
        ({"restart_workers": -1}, ValueError, "restart_workers=-1 must be 0 or more"),
    ],
    mixture: [
        ({"sources": [1]}, TypeError, r"sources=\[1\] must be a mapping of names to data sets"),
        ({"sources": {}}, ValueError, "sources must be a mapping of names to data sets, with one at least"),
        ({"weights": 3}, TypeError, "weights=3 must be a mapping of names to numbers"),
        ({"weights": {"b": 1}}, ValueError, r"weights are of \['b'\], and the sources are \['a'\]"),
        ({"weights": {"a": "1"}}, TypeError, r"weights\['a'\]='1' must be a finite number above 0; leave a source out"),
        ({"weights": {"a": 0}}, ValueError, r"weights\['a'\]=0 must be a finite number above 0; leave a source out"),
        ({"stop": None}, ValueError, "stop=None is not known; use one of 'first_exhausted'"),
        ({"stop": 3}, TypeError, "stop=3 is not known"),
        ({"mandatory": 3}, TypeError, "mandatory=3 must be a list of names"),
        ({"mandatory": [1]}, TypeError, r"mandatory=\[1\] must be a list of names"),
        ({"mandatory": ["c"]}, ValueError, r"mandatory names \['c'\], and the sources are \['a'\]"),
        ({"seed": 1.0}, TypeError, "seed=1.0 must be an int"),
        ({"provenance": 1}, TypeError, "provenance=1 must be True or False"),
        ({"max_drops": True}, TypeError, "max_drops=True must be a count"),
        ({"lanes": (0, 1)}, ValueError, r"lanes=\(0, 1\): give rows and columns of 1 or more"),
        ({"name": 3}, TypeError, "name=3 must be text"),
    ],
    checkpoints: [
        ({"keep": "x"}, TypeError, "keep='x' must be an int of 1 or more, or None"),
        ({"keep": 1.5}, TypeError, "keep=1.5 must be an int of 1 or more, or None"),
        ({"keep": True}, TypeError, "keep=True must be an int"),
        ({"keep": 0}, ValueError, "keep=0 must be 1 or more, or None"),
        ({"retry": 3}, TypeError, "retry=3 must be a streamio.Retry"),
    ],
    pack: [
        ({"length": "8"}, TypeError, "length='8' must be an int of 1 or more"),
        ({"length": 0}, ValueError, "length=0 must be 1 or more"),
        ({"buffer": 2.0}, TypeError, "buffer=2.0 must be an int of 1 or more"),
        ({"pad": "x"}, TypeError, "pad='x' must be an int"),
        ({"overlong": None}, ValueError, "overlong=None is not known; use one of 'split', 'drop'"),
        ({"tokens": 3}, TypeError, "tokens=3 must be a key of the records"),
    ],
    index: [
        ({"urls": 3}, TypeError, "urls=3 must be a URL or a list of URLs"),
        ({"urls": []}, ValueError, "urls is empty"),
        ({"workers": "2"}, TypeError, "workers='2' must be an int of 1 or more, or None"),
        ({"workers": 0}, ValueError, "workers=0 must be 1 or more, or None"),
        ({"columns": "id"}, TypeError, "columns='id' must be a list of names"),
        ({"format": 3}, TypeError, "format=3 must be the name of a format"),
        ({"format_options": 3}, TypeError, "format_options=3 must be a mapping"),
        ({"engine": 3}, TypeError, "engine=3 is not known"),
        ({"retry": 3}, TypeError, "retry=3 must be a streamio.Retry"),
        ({"group_timeout": "x"}, TypeError, "group_timeout='x' must be a finite number above 0"),
        ({"progress": 3}, TypeError, "progress=3 must be a function"),
    ],
    skip_to: [
        ({"step": "4"}, TypeError, "step='4' must be an int"),
        ({"step": 4.0}, TypeError, "step=4.0 must be an int"),
    ],
    set_epoch: EPOCHS,
    set_epoch_of_a_dataset: EPOCHS,
    set_epoch_of_a_mixture: EPOCHS,
}


@pytest.mark.parametrize(
    ("call", "options", "error", "message"),
    [
        pytest.param(call, *case, id=f"{call.__name__}-{case[0]}".replace("\n", " "))
        for call, table in TABLES.items()
        for case in table
    ],
)
def test_an_option_that_cant_be_is_named_with_its_value_and_what_it_takes(
    call: Callable[..., Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call(**options)


@pytest.mark.parametrize("call", [dataset, checkpoints, index])
@pytest.mark.parametrize("value", ["hush", [("key", "hush")], {1: "hush"}, 0])
def test_storage_options_of_a_wrong_type_are_told_but_not_shown(call: Callable[..., Any], value: Any) -> None:
    with pytest.raises(TypeError, match=r"^storage_options must be a mapping of option names to values") as told:
        call(storage_options=value)
    assert "hush" not in str(told.value)


def test_numbers_of_numpy_do_what_plain_ones_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": i, "tokens": [i] * 3}) + "\n" for i in range(30)))
    build_index(tmp_path, workers=np.int64(1), group_timeout=np.float32(60))

    def made(whole: Callable[[int], Any], real: Callable[[float], Any]) -> Any:
        data = streamio.StreamingDataset(
            tmp_path, shuffle=True, seed=whole(3), window=whole(5), max_records=whole(20), shuffle_bytes=whole(1 << 20),
            prefetch_bytes=whole(1 << 20), lanes=(whole(1), whole(2)), rank=whole(0), world_size=whole(1),
            max_drops=whole(2), group_timeout=real(60),
        )  # fmt: skip
        mixed = streamio.Mixture(
            {"a": streamio.StreamingDataset(tmp_path, shuffle=True)},
            weights={"a": real(0.5)},
            seed=whole(3),
            max_drops=real(0.5),
        )
        loaders = [
            streamio.DataLoader(
                data, whole(4), num_workers=whole(1), prefetch_factor=whole(2), timeout=real(60), threads=whole(1),
                restart_workers=whole(1),
            ),
            streamio.DataLoader(mixed, global_batch_size=whole(4)),
        ]  # fmt: skip
        loaders[0].skip_to(whole(2))
        found = []
        for each in loaders:
            each.set_epoch(whole(1))
            found.append([[record["id"] for record in batch] for batch in each])
            json.dumps(each.state().to_json())
        packer = streamio.pack(loaders[1], whole(8), buffer=whole(4), pad=whole(-1))
        rows = [row["tokens"].tolist() for row in packer]
        streamio.Checkpoints(tmp_path / "runs", keep=whole(1)).save(loaders[1])
        return found, rows, packer.state_dict()["streamio_pack"].replace(loaders[1].state().run, "")

    assert made(np.int64, np.float32) == made(int, float)


def test_a_group_that_this_process_is_not_in_is_no_wrong_type(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        2,
        """
from streamio import StreamingDataset
some = dist.new_group([0])
if rank == 1:
    error(TopologyError, StreamingDataset, "/nowhere/data", process_group=some)
else:
    tell(numbers(StreamingDataset("/nowhere/data", process_group=some).topology))
error(TypeError, StreamingDataset, "/nowhere/data", device_mesh=dist.group.WORLD)
error(TypeError, StreamingDataset, "/nowhere/data", process_group=DeviceMesh("cpu", [0, 1]))
dist.barrier()
""",
    )
    assert told[0][0] == [0, 1, [0]]
    assert "is not in process_group" in told[1][0]
    for rank in told:
        assert rank[1].startswith("device_mesh=")
        assert rank[2].startswith("process_group=")
