"""What may be given as `filters=`: checked at once, and told by one text on every machine."""

from __future__ import annotations

import datetime
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import streamio
from streamio.errors import FormatError
from streamio.formats.filters import checked
from streamio.partitions import find

field = pc.field


@pytest.mark.parametrize(
    ("option", "kind", "message"),
    [
        ("lang == 'en'", TypeError, r'must be \[\("lang", "==", "en"\)'),
        ({"lang": "en"}, TypeError, "must be"),
        ([], ValueError, "empty"),
        ([[]], ValueError, "empty list in it"),
        ([("lang", "en")], ValueError, r"\('lang', 'en'\) for a term"),
        ([("lang", "==", "en"), [("lang", "==", "de")]], ValueError, "mixes terms and lists"),
        ([[("lang", "==", "en")], ("lang", "==", "de")], ValueError, "mixes"),
        (["lang"], ValueError, "'lang' for a term"),
        ([(1, "==", 2)], TypeError, "1 for a column"),
        ([("lang", "~", "en")], ValueError, "'~' for an operator.*not in"),
        ([("lang", "in", "en")], ValueError, "'en' for a list of values"),
        ([("lang", "==", ["en"])], ValueError, "use 'in'"),
        ([("lang", "!=", None)], ValueError, r'field\("lang"\).is_null'),
        ([("lang", "==", object())], ValueError, "pyarrow can't take this"),
        ([("a", ">", field("b"))], TypeError, "compares columns"),
        (field(0) == 1, ValueError, "must name its columns"),
    ],
)
def test_wrong_shapes_are_named_at_construction(option: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        streamio.StreamingDataset("s3://nowhere/", filters=option)


def test_it_is_an_argument_of_its_own() -> None:
    with pytest.raises(ValueError, match="argument of its own"):
        streamio.StreamingDataset("s3://nowhere/", format_options={"filters": [("a", "==", 1)]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("a", "=", 1)], [[("a", "==", 1)]]),
        ([("a", "in", {"x", "y", "z"})], [("a", "in", ["x", "y", "z"])]),
        ([("a", ">", np.float32(0.5))], [("a", ">", 0.5)]),
        ([("a", "not in", np.array([1, 2]))], [("a", "not in", (1, 2))]),
        ([("a", "in", pa.array([1, 2]))], [("a", "in", [1, 2])]),
    ],
)
def test_equal_filters_have_one_text(one: Any, other: Any) -> None:
    first, second = checked(one), checked(other)
    assert first == second
    assert first is not None


def test_other_filters_have_other_texts() -> None:
    filters = [
        [("a", "==", 1)],
        [("a", "==", "1")],
        [("a", "==", 1), ("b", "==", 2)],
        [[("a", "==", 1)], [("b", "==", 2)]],
        [("a", "in", [1, 2])],
        [("a", "in", list(range(100)))],
        [("a", "in", [*range(50), -1, *range(51, 100)])],
        [("a", ">", datetime.date(2024, 1, 1))],
        field("a").isin(list(range(100))),
        field("a").isin([*range(50), -1, *range(51, 100)]),  # pyarrow shows the ends only
        (field("a") == 1) & (field("b") == 2),
        (field("a") == 1) | (field("b") == 2),
    ]
    assert len({made.text for made in map(checked, filters) if made}) == len(filters)


def test_the_text_is_the_same_in_every_process() -> None:
    program = (
        "import pyarrow.compute as pc; from streamio.formats.filters import checked;"
        "print(checked([('a', 'in', {'x', 'y', 'z', 'w'})]).text, checked(pc.field('a').isin(list(range(100)))).text)"
    )
    told = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in range(3)}
    assert len(told) == 1


def test_they_travel() -> None:
    filters = checked((field("a") == 1) & field("b").is_null())
    assert filters is not None
    again = pickle.loads(pickle.dumps(filters))
    assert again == filters
    assert again.expression.equals(filters.expression)


PARTITIONS = find({"year": int}, ["s3://bucket/lang=en/year=2024/x"], None)


@pytest.mark.parametrize(
    ("option", "of_keys", "whole"),
    [
        ([("lang", "==", "en")], field("lang") == "en", True),
        ([("lang", "==", "en"), ("score", ">", 1)], field("lang") == "en", False),
        ([[("lang", "==", "en")], [("score", ">", 1)]], None, False),
        (
            [[("lang", "==", "en"), ("score", ">", 1)], [("year", ">", 2)]],
            (field("lang") == "en") | (field("year") > 2),
            False,
        ),
        (field("year") > 2023, field("year") > 2023, True),
        ((field("year") > 2023) & (field("score") > 1), None, False),
    ],
)
def test_what_is_said_of_partition_keys_is_found(option: Any, of_keys: Any, whole: bool) -> None:
    filters = checked(option)
    assert filters is not None
    found, all_of_it = filters.on_keys(PARTITIONS)
    assert all_of_it == whole
    assert found is of_keys is None or found.equals(of_keys)


def test_a_key_compared_with_another_type_is_told_with_the_remedy() -> None:
    for option in ([("lang", ">", 3)], field("lang") > 3):
        filters = checked(option)
        assert filters is not None
        with pytest.raises(FormatError, match=r"lang: string, year: int64.*partitions= gives types"):
            filters.on_keys(PARTITIONS)
