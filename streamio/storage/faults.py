"""What a failed storage call means: the one place that knows the exceptions of every client.

It turns them into streamio's own; it neither retries nor logs. Texts made here never hold credentials.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import os
import re
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from streamio.errors import (
    AccessError,
    CredentialsError,
    DataNotFoundError,
    EndpointError,
    ReadError,
    ShardChangedError,
    StreamioError,
)

Kind: TypeAlias = Literal[
    "transient",  # worth another attempt
    "unreachable",  # no connection: worth another attempt too
    "expired",  # credentials ran out: worth another attempt with fresh ones
    "missing",  # 404
    "denied",  # 403
    "credentials",  # 401, an unknown key, or none at all
    "tls",  # https:// asked of a server that speaks plain HTTP
    "changed",  # 412, 416, another size
    "permanent",  # any other answer that a repetition won't change
    "foreign",  # not an error of a storage call
]


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed storage call.

    Attributes:
        kind: What to do about it.
        text: The cause in a few words, without credentials ("503 SlowDown: Please reduce your request rate").
    """

    kind: Kind
    text: str

    @property
    def transient(self) -> bool:
        """Whether another attempt may go well."""
        return self.kind in ("transient", "unreachable", "expired")


class ShortAnswerError(Exception):
    """An answer whose length or range is not what was asked for: transient."""


class ChangedError(Exception):
    """The object is not the one that was listed."""


def classify(error: BaseException) -> Fault:
    """Tell what an exception of a storage client, of what it stands on, or of the system means."""
    for link in _chain(error):
        fault = _client_fault(link)
        if fault is not None:
            return fault
    return _builtin_fault(error)


def read_error(fault: Fault, *, url: str, what: str, attempts: int, seconds: float) -> StreamioError:
    """The error for a read of a listed shard that failed for good.

    Args:
        fault: The last cause.
        url: Full URL of the shard.
        what: What was read ("bytes 0-99").
        attempts: How often it was tried.
        seconds: For how long nothing came.
    """
    head = f"{shown(url)}: {what}"
    if fault.kind == "missing" and "memory://" in url:
        return ReadError(
            f"{head}: nothing is there in this process: memory:// lives in the process that filled it, and of workers "
            "those alone see it that are started by fork. Use a local folder (file://), or num_workers=0."
        )
    if fault.kind == "missing":
        return ShardChangedError(
            f"{head}: the object (or its bucket) was removed since it was listed ({fault.text}). "
            "Restore it, or begin anew from a fresh listing."
        )
    if fault.kind == "changed":
        return ShardChangedError(
            f"{head}: the shard was overwritten since it was listed ({fault.text}). "
            "Put the listed version back, or begin anew from a fresh listing."
        )
    if fault.kind in ("denied", "credentials"):
        return _refused(fault, head)
    return ReadError(f"{head}: {_given_up(fault, attempts, seconds)}")


def call_error(fault: Fault, *, url: str, what: str, attempts: int, seconds: float) -> StreamioError:
    """The error for any other storage call that failed for good; arguments as for `read_error`."""
    head = f"{shown(url)}: {what}"
    if fault.kind == "missing":
        return DataNotFoundError(f"{head}: nothing is there ({fault.text}). Check the bucket and the path.")
    if fault.kind in ("denied", "credentials"):
        return _refused(fault, head)
    if fault.transient or fault.kind == "tls":
        return EndpointError(f"{head}: {_given_up(fault, attempts, seconds)}")
    return ReadError(f"{head}: {_given_up(fault, attempts, seconds)}")


def shown(url: str) -> str:
    """A URL as it may stand in a message: without passwords, and without the values of signed queries."""
    url = re.sub(r"(://)[^/\s]*@", r"\1***@", url)  # to the last @: a password may hold some
    return re.sub(r"(?i)([?&][^=&]*(?:sig|token|credential|key|secret|password)[^=&]*=)[^&\s]+", r"\1***", url)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """A text on one line of at most 300 characters, without known secrets and what looks like credentials."""
    from_env = (os.environ.get(name, "") for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"))
    for secret in (*secrets, *from_env):
        if len(secret) >= 4:  # shorter ones would tear words apart and are no secrets
            text = text.replace(secret, "***")
    text = re.sub(
        r"(?i)<(AWSAccessKeyId|StringToSign\w*|SignatureProvided|CanonicalRequest\w*|Token-\d)>.*?</\1>",
        "",
        text,
    )
    text = re.sub(r"(?i)\b(bearer|signature=|credential=)\s*[^\s,;&]+", r"\1 ***", text)
    text = " ".join(shown(text).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _given_up(fault: Fault, attempts: int, seconds: float) -> str:
    if not fault.transient:
        return f"{fault.text}."
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    advice = {
        "unreachable": "Check the endpoint, the network and DNS",
        "expired": "Renew the credentials",
    }.get(fault.kind, "Check the store's health and limits")
    return f"given up after {times}, {seconds:.0f} s without progress; the last cause: {fault.text}. {advice}."


def _refused(fault: Fault, head: str) -> StreamioError:
    if fault.kind == "denied":
        return AccessError(
            f"{head}: access denied ({fault.text}). Check that these credentials may read this object; "
            "a store may also answer so for an object that is not there."
        )
    return CredentialsError(
        f"{head}: no valid credentials ({fault.text}). Check storage_options, environment and profile."
    )


# Error codes of S3 and its like, where the status alone would mislead.
_CODES: dict[str, Kind] = {
    "ExpiredToken": "expired",
    "ExpiredTokenException": "expired",
    "TokenRefreshRequired": "expired",
    "RequestExpired": "expired",
    "InvalidAccessKeyId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "InvalidToken": "credentials",
    "InvalidClientTokenId": "credentials",
    "UnrecognizedClientException": "credentials",
    "RequestTimeout": "transient",
    "RequestTimeoutException": "transient",
    "SlowDown": "transient",
    "Throttling": "transient",
    "ThrottlingException": "transient",
    "RequestLimitExceeded": "transient",
    "InternalError": "transient",
    "ServiceUnavailable": "transient",
    "OperationAborted": "transient",
    "NoSuchKey": "missing",
    "NoSuchBucket": "missing",
    "PreconditionFailed": "changed",
    "InvalidRange": "changed",
}
_STATUSES: dict[int, Kind] = {
    401: "credentials",
    403: "denied",
    404: "missing",
    408: "transient",
    409: "transient",
    410: "missing",
    412: "changed",
    416: "changed",
    425: "transient",
    429: "transient",
    501: "permanent",
    505: "permanent",
}
_ELSEWHERE = " (the bucket lies in another region: set client_kwargs={'region_name': ...} or AWS_REGION)"


def _answer(status: int, code: str = "", message: str = "") -> Fault:
    """The fault of an HTTP error answer."""
    kind = _CODES.get(code) or _STATUSES.get(status) or ("transient" if status >= 500 else "permanent")
    words = " ".join(filter(None, (str(status) if status else "", code)))
    text = scrub(f"{words}: {message}" if message else words)
    if status == 301 or code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
        text += _ELSEWHERE
    return Fault(kind, text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: s3fs puts botocore's own error there."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _client_fault(error: BaseException) -> Fault | None:
    """The fault of an exception of a client library or of our own; None for the built-in types."""
    if isinstance(error, ShortAnswerError):
        return Fault("transient", str(error))
    if isinstance(error, ChangedError):
        return Fault("changed", str(error))
    name, home = type(error).__name__, type(error).__module__.partition(".")[0]
    text = str(error)
    if home == "obstore" or "Debug source:" in text:
        return _obstore_fault(name, text)
    if home in ("botocore", "aiobotocore"):
        return _botocore_fault(name, error)
    if home == "aiohttp":
        status = getattr(error, "status", 0)
        if "Certificate" in name or "SSL" in name:
            return _tls_fault(name, text)
        if isinstance(status, int) and status >= 400:
            return _answer(status, message=str(getattr(error, "message", "")))
        return Fault("unreachable" if "Connect" in name else "transient", scrub(f"{name}: {text}"))
    if home == "gcsfs" and name == "HttpError":
        return _answer(int(getattr(error, "code", 0) or 0), message=str(getattr(error, "message", "")))
    if home in ("requests", "urllib3"):
        response = getattr(error, "response", None)
        if response is not None and response.status_code >= 400:
            return _answer(response.status_code)
        return Fault("unreachable" if "Connection" in name else "transient", scrub(f"{name}: {text}"))
    if home == "google":
        kind: Kind = "unreachable" if name == "TransportError" else "credentials"
        return Fault(kind, scrub(f"{name}: {text}"))
    if name in ("FSTimeoutError", "IncompleteRead", "IncompleteReadError"):
        return Fault("transient", f"{name}: no complete answer in time")
    return None


def _obstore_fault(name: str, text: str) -> Fault | None:
    """The fault of an exception of obstore, most of which differ by their text alone."""
    status = re.search(r"status code: (\d{3})", text)
    if status is not None:
        code = re.search(r"<Code>([^<]*)</Code>", text)
        message = re.search(r"<Message>([^<]*)</Message>", text)
        return _answer(int(status[1]), code[1] if code else "", message[1] if message else "")
    named: dict[str, Kind] = {
        "PreconditionError": "changed",
        "FileNotFoundError": "missing",
        "PermissionDeniedError": "denied",
        "UnauthenticatedError": "credentials",
    }
    if name in named:
        return Fault(named[name], scrub(text.partition("Debug source:")[0]))
    if "StartTooLarge" in text:
        return Fault("changed", "the object is shorter than listed")
    if "UnexpectedRange" in text or "NotPartial" in text:
        return Fault("transient", scrub(text.partition("Debug source:")[0].partition("error: ")[2]))
    if "certificate" in text.lower():
        return Fault("permanent", "the TLS certificate of the endpoint is not trusted")
    kind = re.search(r"kind: (Timeout|Connect|Interrupted|Request|Body|Decode|Unknown)", text)
    if kind is not None or "error sending request" in text:
        causes = {
            "Timeout": "no answer in time",
            "Connect": "no connection",
            "Interrupted": "the connection broke",
        }
        cause = causes.get(kind[1] if kind else "", "the connection broke")
        return Fault("unreachable" if cause == "no connection" else "transient", cause)
    if name == "GenericError":
        return Fault("permanent", scrub(text.partition("Debug source:")[0]))
    return None if name == "ValueError" else Fault("permanent", scrub(f"{name}: {text.partition('Debug source:')[0]}"))


def _botocore_fault(name: str, error: BaseException) -> Fault:
    response: dict[str, Any] | None = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code, message = str(response["Error"].get("Code", "")), str(response["Error"].get("Message", ""))
        return _answer(int(status or (code if code.isdigit() else 0)), "" if code.isdigit() else code, message)
    if re.search("Credential|Profile|Token|SSO|Login", name):
        return Fault("credentials", scrub(f"{name}: {error}"))
    if name == "SSLError":
        return _tls_fault(name, str(error))
    if re.search("EndpointConnection|ConnectTimeout|ProxyConnection|ConnectionError", name):
        return Fault("unreachable", scrub(f"{name}: {error}"))
    if re.search("Timeout|ConnectionClosed|HTTPClient|ResponseStream|IncompleteRead|ResponseParser|Checksum", name):
        return Fault("transient", scrub(f"{name}: {error}"))
    return Fault("permanent", scrub(f"{name}: {error}"))


def _tls_fault(name: str, text: str) -> Fault:
    if re.search("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|PACKET_LENGTH_TOO_LONG", text):
        remedy = "the server does not speak TLS: write http:// in endpoint_url (or the URL), or turn TLS on there"
        return Fault("tls", scrub(f"{remedy} ({name}: {text}"[:280] + ")"))
    return Fault("permanent", scrub(f"{name}: {text}"))


_BUSY = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EIO,  # what mounted buckets and network disks answer when their server stumbles
    errno.EPIPE,
    errno.ESTALE,
    errno.EINTR,
    errno.ETIMEDOUT,
    getattr(errno, "EREMOTEIO", errno.EIO),
    errno.EMFILE,
    errno.ENFILE,
}
_CUT_OFF = {errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ECONNREFUSED}


def _builtin_fault(error: BaseException) -> Fault:
    name = type(error).__name__
    text = scrub(f"{name}: {error}" if str(error) else name)
    # Three different classes before Python 3.11.
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)):
        return Fault("transient", text)
    if isinstance(error, ConnectionRefusedError):
        return Fault("unreachable", text)
    if isinstance(error, (ConnectionError, EOFError)):
        return Fault("transient", text)
    if isinstance(error, FileNotFoundError):
        return Fault("missing", text)
    if isinstance(error, PermissionError):
        return Fault("denied", text)
    if not isinstance(error, OSError):
        return Fault("foreign", text)
    if isinstance(error, ssl.SSLError):
        return _tls_fault(name, str(error))
    if str(error).startswith("Forbidden"):  # gcsfs's word for 403
        return Fault("denied", text)
    if name == "gaierror" or error.errno in _CUT_OFF:
        return Fault("unreachable", text)
    return Fault("transient" if error.errno in _BUSY else "permanent", text)
