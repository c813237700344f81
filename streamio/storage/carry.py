"""Options of s3fs and gcsfs as values that obstore can be given; the environment is read as botocore does.

No client is made, no credential looked up. An option that can't be carried over is named by an exception.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamio.storage.urls import options_for


class CannotCarryError(Exception):
    """An option that obstore can't be told; its text is the option's name."""


@dataclass(frozen=True)
class S3Options:
    """What obstore needs for s3://.

    Attributes:
        anon: Requests are not signed.
        key: Access key id, None to look for credentials as botocore does.
        secret: Its secret.
        token: Its session token.
        profile: The profile of the shared config file to use.
        endpoint: The endpoint's URL, None for AWS's own or the one of the config file.
        region: The region, None where only the config file may know.
        requester_pays: Whether the requester pays.
        verify: Whether TLS certificates are checked, or a file of certificates to trust.
    """

    anon: bool = False
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    profile: str | None = None
    endpoint: str | None = None
    region: str | None = None
    requester_pays: bool = False
    verify: bool | str = True


@dataclass(frozen=True)
class GsOptions:
    """What obstore needs for gs://.

    Attributes:
        token: gcsfs's `token`: None, a keyword, a path, a dict, a bearer token or a credentials object.
        endpoint: The endpoint's URL, None for Google's own.
        project: The project that gcsfs's look for credentials is told.
    """

    token: Any = field(default=None, repr=False)
    endpoint: str | None = None
    project: str | None = None


# Options that concern listings, files opened for writing, or what this library settles by itself.
_ANY_FS = {
    "use_listings_cache",
    "listings_expiry_time",
    "max_paths",
    "skip_instance_cache",
    "asynchronous",
    "loop",
}
_S3_WITHOUT_MEANING = _ANY_FS | {
    "default_block_size",
    "default_fill_cache",
    "default_cache_type",
    "max_concurrency",
    "fixed_upload_size",
}
_GS_WITHOUT_MEANING = _ANY_FS | {
    "access",
    "block_size",
    "consistency",
    "cache_timeout",
    "secure_serialize",
    "check_connection",
    "requests_timeout",
    "timeout",
    "default_location",
}
_CONFIG_WITHOUT_MEANING = {
    "connect_timeout",
    "read_timeout",
    "retries",
    "max_pool_connections",
    "tcp_keepalive",
}


def carry(scheme: str, storage_options: Mapping[str, Any]) -> S3Options | GsOptions:
    """Carry a user's storage options over.

    Args:
        scheme: "s3" or "gs".
        storage_options: As the user gave them, perhaps by scheme.

    Raises:
        CannotCarryError: An option that matters can't be carried over.
    """
    options = options_for(f"{scheme}://", storage_options)[scheme]
    return carry_s3(options) if scheme == "s3" else carry_gs(options)


def carry_s3(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> S3Options:
    """Carry s3fs's options over.

    Args:
        options: Keyword arguments of `s3fs.S3FileSystem`.
        environ: The environment; the process's by default.

    Raises:
        CannotCarryError: An option that matters can't be carried over.
    """
    env = os.environ if environ is None else environ
    left = {name: value for name, value in options.items() if name not in _S3_WITHOUT_MEANING}
    client = dict(left.pop("client_kwargs", None) or {})
    key = left.pop("username", None) or left.pop("key", None) or client.pop("aws_access_key_id", None)
    secret = left.pop("password", None) or left.pop("secret", None) or client.pop("aws_secret_access_key", None)
    token = left.pop("token", None) or client.pop("aws_session_token", None)
    if bool(key) != bool(secret):
        raise CannotCarryError("secret" if key else "key")
    profile = left.pop("profile", None)
    anon = bool(left.pop("anon", False))
    if not (key or anon or profile or "AWS_CREDENTIAL_EXPIRATION" in env):  # as botocore: before any file
        key, secret = env.get("AWS_ACCESS_KEY_ID") or None, env.get("AWS_SECRET_ACCESS_KEY") or None
        token = env.get("AWS_SESSION_TOKEN") or env.get("AWS_SECURITY_TOKEN")
        if not (key and secret):
            key = secret = token = None
    for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"):
        client.pop(name, None)
    endpoint = left.pop("endpoint_url", None) or client.pop("endpoint_url", None) or _env_endpoint(env)
    client.pop("endpoint_url", None)
    region = client.pop("region_name", None) or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    verify = client.pop("verify", None)
    plain = not left.pop("use_ssl", True) or not client.pop("use_ssl", True)
    if plain and endpoint is None:
        raise CannotCarryError("use_ssl")
    carried = S3Options(
        anon=anon,
        key=key,
        secret=secret,
        token=token,
        profile=profile,
        endpoint=endpoint,
        region=region,
        requester_pays=bool(left.pop("requester_pays", False)),
        verify=env.get("AWS_CA_BUNDLE", True) if verify is None else verify,
    )
    _check_config(left.pop("config_kwargs", None) or {})
    _nothing_left({f"client_kwargs.{name}": value for name, value in client.items()})
    _nothing_left(left)
    return carried


def carry_gs(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> GsOptions:
    """Carry gcsfs's options over; arguments and errors as for `carry_s3`."""
    env = os.environ if environ is None else environ
    left = {name: value for name, value in options.items() if name not in _GS_WITHOUT_MEANING}
    emulator = env.get("STORAGE_EMULATOR_HOST")
    if emulator and emulator != "default" and not emulator.startswith(("http://", "https://")):
        emulator = f"http://{emulator}"
    endpoint = left.pop("endpoint_url", None) or (None if emulator == "default" else emulator or None)
    carried = GsOptions(token=left.pop("token", None), endpoint=endpoint, project=left.pop("project", None))
    _nothing_left(left)
    return carried


def client_options(*, endpoint: str | None, verify: bool | str, stall_timeout: float, longest: float) -> dict[str, Any]:
    """The HTTP options of obstore.

    Args:
        endpoint: The endpoint; plain HTTP is allowed where it says so.
        verify: As in `S3Options`.
        stall_timeout: Seconds without a byte until a request fails.
        longest: Seconds until any request fails, its body included.
    """
    options: dict[str, Any] = {
        "allow_http": bool(endpoint) and str(endpoint).startswith("http://"),
        "connect_timeout": f"{int(min(stall_timeout, 10) * 1000)}ms",
        "read_timeout": f"{int(stall_timeout * 1000)}ms",
        "timeout": f"{int(longest * 1000)}ms",
    }
    if verify is False:
        options["allow_invalid_certificates"] = True
    elif isinstance(verify, (str, os.PathLike)):
        options["root_certificate"] = Path(verify).read_text()
    return options


def _env_endpoint(env: Mapping[str, str]) -> str | None:
    if env.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or None


def _check_config(config: Mapping[str, Any]) -> None:
    for name, value in config.items():
        if name in _CONFIG_WITHOUT_MEANING:
            continue
        style = dict(value) if name == "s3" and isinstance(value, Mapping) else None
        if style is None or style.pop("addressing_style", "path") not in ("path", "auto", None) or any(style.values()):
            raise CannotCarryError(f"config_kwargs.{name}")


def _nothing_left(left: Mapping[str, Any]) -> None:
    for name, value in left.items():
        if value not in (None, False, "", {}, []):  # an option at its default asks for nothing
            raise CannotCarryError(name)
