"""Exceptions of the clients, told apart; and texts, cleaned of credentials."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from streamio.errors import AccessError, CredentialsError, ReadError, ShardChangedError
from streamio.storage.faults import (
    ChangedError,
    Fault,
    ShortAnswerError,
    call_error,
    classify,
    read_error,
    scrub,
    shown,
)


def client_error(code: str, status: int, message: str = "told so") -> Exception:
    from botocore.exceptions import ClientError

    answer: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "GetObject")


def through_s3fs(error: Exception) -> BaseException:
    from s3fs.errors import translate_boto_error

    return translate_boto_error(error)


def of_gcsfs(code: int, message: str = "") -> Exception:
    from gcsfs.retry import HttpError

    return HttpError({"code": code, "message": message})


def of_aiohttp(status: int) -> Exception:
    from aiohttp import ClientResponseError

    return ClientResponseError(SimpleNamespace(real_url="http://h/x"), (), status=status)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("SlowDown", 503, "transient"),
        ("InternalError", 500, "transient"),
        ("RequestTimeout", 400, "transient"),
        ("TooManyRequests", 429, "transient"),
        ("503", 503, "transient"),
        ("ExpiredToken", 400, "expired"),
        ("NoSuchKey", 404, "missing"),
        ("AccessDenied", 403, "denied"),
        ("InvalidAccessKeyId", 403, "credentials"),
        ("SignatureDoesNotMatch", 403, "credentials"),
        ("PreconditionFailed", 412, "changed"),
        ("InvalidRange", 416, "changed"),
        ("InvalidRequest", 400, "permanent"),
        ("NotImplemented", 501, "permanent"),
    ],
)
def test_an_answer_of_s3_means_the_same_by_botocore_and_by_s3fs(code: str, status: int, kind: str) -> None:
    error = client_error(code, status)
    assert classify(error).kind == kind
    assert classify(through_s3fs(error)).kind == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), "transient"),
        (asyncio.TimeoutError(), "transient"),
        (ConnectionResetError(), "transient"),
        (ConnectionRefusedError(), "unreachable"),
        (socket.gaierror(-2, "Name or service not known"), "unreachable"),
        (OSError(errno.EIO, "I/O error"), "transient"),
        (OSError(errno.ENOSPC, "no space"), "permanent"),
        (FileNotFoundError("x"), "missing"),
        (PermissionError("x"), "denied"),
        (OSError("Forbidden: /b/k"), "denied"),
        (EOFError(), "transient"),
        (ShortAnswerError("x"), "transient"),
        (ChangedError("x"), "changed"),
        (ValueError("x"), "foreign"),
    ],
)
def test_errors_of_the_system_and_our_own(error: Exception, kind: str) -> None:
    assert classify(error).kind == kind


def test_answers_of_gcsfs_and_of_http_servers() -> None:
    assert [classify(of_gcsfs(code)).kind for code in (503, 401, 403, 412)] == [
        "transient",
        "credentials",
        "denied",
        "changed",
    ]
    assert [classify(of_aiohttp(status)).kind for status in (502, 404, 403)] == ["transient", "missing", "denied"]


def test_missing_credentials_and_profiles_are_told_as_such() -> None:
    from botocore.exceptions import NoCredentialsError, ProfileNotFound
    from google.auth.exceptions import DefaultCredentialsError, TransportError

    for error in (NoCredentialsError(), ProfileNotFound(profile="x"), DefaultCredentialsError("x")):  # type: ignore[no-untyped-call]
        assert classify(error).kind == "credentials"
    assert classify(TransportError("x")).kind == "unreachable"  # type: ignore[no-untyped-call]


def test_a_bucket_in_another_region_is_told_with_the_remedy() -> None:
    assert "AWS_REGION" in classify(client_error("PermanentRedirect", 301)).text


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault("missing", "404"), ShardChangedError, "removed since it was listed"),
        (Fault("changed", "412"), ShardChangedError, "overwritten since it was listed"),
        (Fault("denied", "403"), AccessError, "access denied"),
        (Fault("credentials", "401"), CredentialsError, "no valid credentials"),
        (Fault("transient", "503"), ReadError, "given up after 7 attempts, 300 s without progress"),
        (Fault("permanent", "400"), ReadError, "400"),
    ],
)
def test_a_failed_read_names_url_bytes_cause_and_remedy(fault: Fault, kind: type[Exception], said: str) -> None:
    error = read_error(fault, url="s3://b/k", what="bytes 0-9", attempts=7, seconds=300)
    assert type(error) is kind
    assert str(error).startswith("s3://b/k: bytes 0-9: ")
    assert said in str(error)


def test_no_credential_stands_in_a_text() -> None:
    body = (
        "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIAVERYSECRET</AWSAccessKeyId>"
        "<StringToSign>AWS4-HMAC topsecret</StringToSign></Error> Authorization: Bearer ya29.topsecret"
    )
    assert "secret" not in scrub(body, ["hushhush"]).lower()
    assert scrub("the key hushhush is wrong", ["hushhush"]) == "the key *** is wrong"
    assert len(scrub("x" * 1000)) == 300
    for kind in ("transient", "denied", "permanent"):
        for make in (read_error, call_error):
            error = make(
                Fault(kind, "x"),  # type: ignore[arg-type]
                url="https://user:topsecret@h/k?X-Amz-Signature=topsecret&part=1",
                what="bytes 0-9",
                attempts=1,
                seconds=0,
            )
            assert "topsecret" not in str(error)
            assert "part=1" in str(error)


def test_a_url_without_credentials_is_shown_as_it_is() -> None:
    for url in ("s3://bucket/a@b/c?d=e", "gs://b/k#1", "file:///a b/ü", "simplecache::https://h:80/x"):
        assert shown(url) == url


def test_a_password_that_holds_an_at_is_masked_whole() -> None:
    assert shown("http://me:p@ss@w@host/a@b.jsonl") == "http://***@host/a@b.jsonl"
    assert shown("https://host/a@b.jsonl and s3://bucket/c@d") == "https://host/a@b.jsonl and s3://bucket/c@d"


def test_a_missing_memory_shard_is_told_to_live_in_one_process() -> None:
    fault = classify(FileNotFoundError("/x.jsonl"))
    error = read_error(fault, url="memory://x.jsonl", what="bytes 0-9", attempts=1, seconds=0)
    assert type(error) is ReadError
    assert "lives in the process that filled it" in str(error)
