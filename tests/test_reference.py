"""docs/reference.md tells every public name with its parameters and defaults, and no others."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import streamio
from streamio import errors

PAGE = (Path(__file__).parents[1] / "docs" / "reference.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
CHECKPOINT_CALLS = [streamio.Checkpoints.save, streamio.Checkpoints.resume]
CALLS = [
    streamio.StreamingDataset.set_epoch,
    streamio.StreamingDataset.prepare,
    streamio.StreamingDataset.get_data_paths,
    streamio.DataLoader.set_epoch,
    streamio.DataLoader.stats,
    streamio.DataLoader.state_dict,
    streamio.DataLoader.load_state_dict,
    streamio.DataLoader.skip_to,
    streamio.DataLoader.leave_out,
    *CHECKPOINT_CALLS,
    streamio.Checkpoints.list,
    streamio.Checkpoints.latest,
    streamio.Checkpoints.wait,
    streamio.DistributedIterableDataset.set_epoch,
    streamio.DistributedIterableDataset.get_data_paths,
    streamio.DistributedIterableDataset.get_data_paths_per_worker,
    streamio.DistributedIterableDataset.set_data_status,
    streamio.DistributedIterableDataset.state_dict,
    streamio.DistributedIterableDataset.load_state_dict,
]


def parameters(function: Any) -> list[inspect.Parameter]:
    return [each for each in inspect.signature(function).parameters.values() if each.name != "self"]


def table(text: str) -> dict[str, list[str]]:
    """The cells of each row that begins with a name in code."""
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows}


def check(rows: dict[str, list[str]], function: Any) -> None:
    expected = parameters(function)
    assert list(rows) == [each.name for each in expected]
    for each in expected:
        default = rows[each.name][1]
        if each.default is inspect.Parameter.empty:
            assert default == "required", each.name
        else:
            assert eval(default.strip("`")) == each.default, each.name


@pytest.mark.parametrize(
    "name",
    [
        "StreamingDataset",
        "DataLoader",
        "Checkpoints",
        "Mixture",
        "pack",
        "build_index",
        "DistributedIterableDataset",
        "Retry",
    ],
)
def test_the_page_has_every_parameter_of_a_class_with_its_default(name: str) -> None:
    check(table(SECTIONS[name].split("\n### ")[0]), getattr(streamio, name))


@pytest.mark.parametrize("call", CHECKPOINT_CALLS, ids=lambda call: str(call.__name__))
def test_the_page_has_every_parameter_of_a_call_with_its_default(call: Any) -> None:
    (part,) = [part for part in SECTIONS["Checkpoints"].split("\n### ") if part.startswith(f"`{call.__name__}(")]
    check(table(part), call)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call.__qualname__))
def test_the_page_has_the_signature_of_a_call(call: Any) -> None:
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in parameters(call)]
    assert f"`{call.__name__}{inspect.Signature(bare)}`" in SECTIONS[call.__qualname__.split(".")[0]]


def test_no_call_of_checkpoints_is_left_out() -> None:
    public = {name for name in vars(streamio.Checkpoints) if not name.startswith("_")}
    assert public == {call.__name__ for call in CALLS if call.__qualname__.startswith("Checkpoints.")}


def test_the_page_has_every_public_name() -> None:
    assert {*streamio.__all__} - {"StreamioError"} <= {*SECTIONS}


def test_the_page_has_every_field_of_the_stats() -> None:
    assert list(table(SECTIONS["Stats"])) == [field.name for field in fields(streamio.Stats)]


def test_the_page_has_every_error_with_the_type_that_it_is_caught_by() -> None:
    rows = table(SECTIONS["Errors"])
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.StreamioError) and kind is not errors.StreamioError
    }
    assert list(rows) == list(classes)
    for name, kind in classes.items():
        assert rows[name][0] == f"`{kind.__bases__[-1].__name__}`"
