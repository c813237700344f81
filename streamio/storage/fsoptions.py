"""The options of fsspec's file systems: checked where these would pass wrong ones over, and completed.

Which of a user's options are for which scheme is told by `streamio.storage.urls`.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any

from streamio.storage.faults import shown

_CONNECT = 4
"""Seconds for one connection, where the user sets none."""
_SILENCE = 30
"""Seconds that a server may stay silent within an answer, where the user sets none."""

# gcsfs takes these without naming them in a signature.
_GS_UNNAMED = {
    *("use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "memmove_max_workers"),
    *("retry_timeout", "retry_initial", "retry_maximum", "retry_multiplier"),
}


def completed(scheme: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The user's options for a scheme, completed by what streamio needs of it."""
    options = dict(given)
    if scheme in ("s3", "gs", "http", "https", "abfs", "abfss", "az"):
        options["use_listings_cache"] = False
    if scheme == "s3":
        # botocore alone would try for minutes on an endpoint that does not answer.
        ours = {
            "connect_timeout": _CONNECT,
            "read_timeout": _SILENCE,
            "retries": {"mode": "standard", "max_attempts": 2},
        }
        options["config_kwargs"] = {**ours, **options.get("config_kwargs", {})}
        region = os.environ.get("AWS_REGION")
        if region:  # which every SDK of AWS but botocore reads
            options["client_kwargs"] = {"region_name": region, **(options.get("client_kwargs") or {})}
    if scheme == "gs":
        endpoint = str(options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST") or "")
        if endpoint and "googleapis.com" not in endpoint and "gcsfs" not in sys.modules:
            # Read when gcsfs is imported: else it asks Google over gRPC for the kind of each bucket, which
            # before an emulator means a minute of waiting for nothing.
            os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        if importlib.util.find_spec("gcsfs") and "requests_timeout" not in options:
            import aiohttp

            # gcsfs hands this to each request, where None means aiohttp's five minutes.
            options["requests_timeout"] = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE)
    return options


def check_endpoint(url: str, scheme: str, given: Mapping[str, Any]) -> None:
    """Botocore and gcsfs answer one that is no text with riddles."""
    client = given.get("client_kwargs")
    inner = client.get("endpoint_url") if isinstance(client, Mapping) else None
    for endpoint in (given.get("endpoint_url"), inner):
        if scheme in ("s3", "gs") and endpoint is not None and not isinstance(endpoint, str):
            raise TypeError(
                f"{shown(url)}: storage_options: endpoint_url must be a string such as 'http://127.0.0.1:9000', "
                f"not {type(endpoint).__name__}"
            )


def check_gs(settings: Mapping[str, Any]) -> None:
    """Refuse options that gcsfs itself would pass over in silence.

    Raises:
        TypeError: One that it does not know, in the words of Python's own for a function.
    """
    import fsspec

    cls = fsspec.get_filesystem_class("gs")
    parameters = (inspect.signature(base.__init__).parameters.values() for base in cls.__mro__)
    named = (parameter.name for own in parameters for parameter in own if parameter.kind is not parameter.VAR_KEYWORD)
    known = _GS_UNNAMED.union(named)
    for name in settings:
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}")
