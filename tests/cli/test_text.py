from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import pytest

from streamio.cli import text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x00\xff", "AP8="),
        (datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc), "2024-05-06T07:08:09+00:00"),
        (datetime.date(2024, 5, 6), "2024-05-06"),
        (datetime.time(7, 8), "07:08:00"),
        (datetime.timedelta(seconds=90), 90.0),
        (decimal.Decimal("1.10"), "1.10"),
        (math.nan, None),
        (math.inf, None),
        (2**80, 2**80),
        (True, True),
        ([("k", b"v")], [["k", "dg=="]]),
        ({1: {"a": None}}, {"1": {"a": None}}),
        ("Grüße\n", "Grüße\n"),
        ("half \ud800", "half \ud800"),
    ],
)
def test_a_value_becomes_json(value: Any, shown: Any) -> None:
    line = text.json_line({"x": value})
    assert b"\n" not in line
    assert json.loads(line) == {"x": shown}


def test_bytes_are_shown_by_their_number_to_people() -> None:
    assert json.loads(text.json_line({"a": [b"123"], "b": b"1"}, whole=False)) == {"a": ["<3 bytes>"], "b": "<1 byte>"}


def test_sizes_have_a_unit() -> None:
    assert [text.size(n) for n in (0, 999, 1024, 1 << 20, 5 << 30)] == ["0 B", "999 B", "1 KiB", "1 MiB", "5 GiB"]


def test_a_url_shows_no_credentials_and_moves_no_cursor() -> None:
    shown = text.url("http://user:pass@host/a\x1b[2J?X-Amz-Signature=abc")
    assert "pass" not in shown
    assert "abc" not in shown
    assert "\x1b" not in shown
