"""Options of s3fs and gcsfs that obstore is told, and those that it can't be."""

from __future__ import annotations

from typing import Any

import pytest

from streamio.storage.carry import CannotCarryError, carry, carry_gs, carry_s3, client_options


def test_the_options_of_s3fs_are_carried_over() -> None:
    options = carry_s3(
        {
            "key": "K",
            "secret": "S",
            "token": "T",
            "endpoint_url": "http://h:1",
            "client_kwargs": {"region_name": "eu-west-1", "verify": False},
            "config_kwargs": {"s3": {"addressing_style": "path"}, "retries": {"max_attempts": 3}},
            "requester_pays": True,
            "default_block_size": 5,
            "use_listings_cache": False,
            "s3_additional_kwargs": {},
        },
        {},
    )
    assert (options.key, options.secret, options.token) == ("K", "S", "T")
    assert (options.endpoint, options.region) == ("http://h:1", "eu-west-1")
    assert options.verify is False
    assert options.requester_pays


def test_keys_within_client_kwargs_and_under_their_other_names_count_too() -> None:
    client = {"aws_access_key_id": "K", "aws_secret_access_key": "S", "endpoint_url": "http://h:1"}
    options = carry_s3({"client_kwargs": client}, {})
    assert (options.key, options.secret, options.endpoint) == ("K", "S", "http://h:1")
    assert carry_s3({"username": "K", "password": "S"}, {}).key == "K"


def test_the_environment_gives_endpoint_region_and_certificates_where_the_options_are_silent() -> None:
    env = {
        "AWS_ENDPOINT_URL": "http://all:1",
        "AWS_ENDPOINT_URL_S3": "http://s3:1",
        "AWS_DEFAULT_REGION": "eu-west-3",
        "AWS_CA_BUNDLE": "/ca.pem",
    }
    options = carry_s3({}, env)
    assert (options.endpoint, options.region, options.verify) == ("http://s3:1", "eu-west-3", "/ca.pem")
    assert carry_s3({"endpoint_url": "http://mine:1"}, env).endpoint == "http://mine:1"
    assert carry_s3({}, {**env, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}).endpoint is None


def test_keys_of_the_environment_count_where_botocore_would_take_them_first() -> None:
    env = {"AWS_ACCESS_KEY_ID": "K", "AWS_SECRET_ACCESS_KEY": "S", "AWS_SESSION_TOKEN": "T"}
    found = carry_s3({}, env)
    assert (found.key, found.secret, found.token) == ("K", "S", "T")
    mine = carry_s3({"key": "K2", "secret": "S2"}, env)
    assert (mine.key, mine.secret, mine.token) == ("K2", "S2", None)
    for options, changed in (
        ({"profile": "mine"}, env),
        ({"anon": True}, env),
        ({}, {**env, "AWS_CREDENTIAL_EXPIRATION": "2999-01-01T00:00:00Z"}),
        ({}, {"AWS_ACCESS_KEY_ID": "K"}),
    ):
        left = carry_s3(options, changed)
        assert (left.key, left.secret, left.token) == (None, None, None)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"session": object()}, "session"),
        ({"s3_additional_kwargs": {"SSECustomerKey": "x"}}, "s3_additional_kwargs"),
        ({"client_kwargs": {"api_version": "x"}}, r"client_kwargs\.api_version"),
        ({"config_kwargs": {"proxies": {"http": "x"}}}, r"config_kwargs\.proxies"),
        ({"config_kwargs": {"s3": {"addressing_style": "virtual"}}}, r"config_kwargs\.s3"),
        ({"use_ssl": False}, "use_ssl"),
        ({"key": "K"}, "secret"),
        ({"local_expiry_check": True}, "local_expiry_check"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_an_option_that_can_not_be_carried_over_is_named(options: dict[str, Any], name: str) -> None:
    with pytest.raises(CannotCarryError, match=f"^{name}$"):
        carry_s3(options, {})


def test_the_options_of_gcsfs_are_carried_over() -> None:
    options = carry_gs({"token": "anon", "project": "p", "access": "read_only"}, {"STORAGE_EMULATOR_HOST": "h:1"})
    assert (options.token, options.endpoint, options.project) == ("anon", "http://h:1", "p")
    assert carry_gs({"endpoint_url": "http://mine:1"}, {"STORAGE_EMULATOR_HOST": "h:1"}).endpoint == "http://mine:1"
    assert carry_gs({}, {"STORAGE_EMULATOR_HOST": "default"}).endpoint is None
    with pytest.raises(CannotCarryError, match=r"^requester_pays$"):
        carry_gs({"requester_pays": True}, {})


def test_options_given_by_scheme_are_found_by_it() -> None:
    options = {"s3": {"key": "K", "secret": "S"}, "gs": {"token": "anon"}}
    assert carry("s3", options).key == "K"  # type: ignore[union-attr]
    assert carry("gs", options).token == "anon"


def test_credentials_stand_in_no_repr() -> None:
    assert "hush" not in repr(carry_s3({"key": "hushkey", "secret": "hushsecret", "token": "hushtoken"}, {}))
    assert "hush" not in repr(carry_gs({"token": "hushtoken"}, {}))


def test_plain_http_is_allowed_only_where_the_endpoint_says_so() -> None:
    for endpoint, allowed in (("http://h", True), ("https://h", False), (None, False)):
        assert client_options(endpoint=endpoint, verify=True, stall_timeout=1, longest=2)["allow_http"] is allowed
