from __future__ import annotations

import pytest
import typer

from streamio.cli import exits
from streamio.cli.options import columns, secrets, storage_options


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
