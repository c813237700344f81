from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Any

import pytest
import typer

from streamio.cli import exits
from streamio.cli.options import columns, filters, index, secrets, storage_options


def test_values_that_are_json_count_as_such_and_others_are_text() -> None:
    given = storage_options(["anon=true", "n=3", "key=abc", 'secret="123"', "url=http://h:1/?a=b", "empty="])
    assert given == {"anon": True, "n": 3, "key": "abc", "secret": "123", "url": "http://h:1/?a=b", "empty": ""}


def test_dots_in_a_key_nest() -> None:
    pairs = ["client_kwargs.region_name=us-east-1", "client_kwargs.verify=false", "s3.anon=true"]
    assert storage_options(pairs) == {
        "client_kwargs": {"region_name": "us-east-1", "verify": False},
        "s3": {"anon": True},
    }


def test_the_endpoint_url_is_text_and_counts_last() -> None:
    assert storage_options(["endpoint_url=http://a"], "http://b") == {"endpoint_url": "http://b"}


@pytest.mark.parametrize("pair", ["topsecret", "=topsecret", "a..b=topsecret"])
def test_a_text_without_a_key_is_refused_and_not_repeated(pair: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        storage_options([pair])
    assert "topsecret" not in str(caught.value)


def test_a_key_can_not_be_a_value_and_a_group() -> None:
    with pytest.raises(typer.BadParameter, match="has a value already"):
        storage_options(["a=1", "a.b=2"])


def test_columns_are_split_at_commas() -> None:
    assert columns(None) is None
    assert columns("id, text") == ["id", "text"]
    with pytest.raises(typer.BadParameter):
        columns("id,,text")


def test_an_index_is_a_url_or_none() -> None:
    assert (index("auto"), index("s3://b/x.index"), index("none")) == ("auto", "s3://b/x.index", None)
    with pytest.raises(typer.BadParameter):
        index("")


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (None, None),
        ('[["lang", "==", "de"]]', [("lang", "==", "de")]),
        ('[["lang", "in", ["de", "en"]], ["score", ">", 0.5]]', [("lang", "in", ["de", "en"]), ("score", ">", 0.5)]),
        (
            '[[["a", "=", 1], ["b", "!=", true]], [["c", "<", 2]]]',
            [[("a", "=", 1), ("b", "!=", True)], [("c", "<", 2)]],
        ),
        ('[["day", "in", [{"date": "2024-01-31"}]]]', [("day", "in", [date(2024, 1, 31)])]),
        (
            '[["at", ">=", {"datetime": "2024-01-31T12:00:00+00:00"}]]',
            [("at", ">=", datetime(2024, 1, 31, 12, tzinfo=timezone.utc))],
        ),
    ],
)
def test_filters_are_what_the_data_set_takes(text: str | None, given: Any) -> None:
    assert filters(text) == given


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lang == de", "line 1 column 1"),
        ("null", "null is no list of terms"),
        ("[]", r"\[\] is no list of terms"),
        ('["lang", "==", "de"]', "no list of terms"),
        ('[["lang", "==", "de"], [["a", "==", 1]]]', "mixes terms and lists of terms"),
        ('[["lang", "is", "de"]]', "'is' for an operator"),
        ('[["lang", "=="]]', "for a term"),
        ('[["day", ">", {"date": "2024-13-01"}]]', '{"date": "2024-13-01"} is no value: say'),
        ('[["day", ">", {"week": "2024-01-01"}]]', "is no value: say"),
        ('[["day", ">", {}]]', "is no value: say"),
        (f'[["id", "<", {10**20}]]', "too large"),
    ],
)
def test_a_mistake_in_filters_is_told_with_what_is_expected(text: str, reason: str) -> None:
    with pytest.raises(typer.BadParameter, match=reason) as caught:
        filters(text)
    assert 'takes JSON: [["lang", "==", "en"]' in str(caught.value)


def test_what_may_be_a_credential_is_found_in_both_ways_of_writing_an_option() -> None:
    arguments = ["ls", "--storage-option", "secret=abcdefgh", "--storage-option=token=ghijklmn", "--storage-option"]
    arguments += ["endpoint_url=http://host", '--storage-option=client_kwargs={"aws_secret_access_key": "opqrstuv"}']
    found = secrets(arguments)
    assert {"abcdefgh", "ghijklmn", "opqrstuv"} <= set(found)
    assert "http://host" not in found


def test_a_credential_that_is_the_programs_name_does_not_blot_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--storage-option=key=streamio", "--storage-option=secret=streamio-secret"]
    exits.note("Try 'streamio ls --help': streamio-secret is refused", secrets(arguments))
    assert capsys.readouterr().err == "streamio: Try 'streamio ls --help': *** is refused\n"
