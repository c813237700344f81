"""What a user may write as a URL, the fsspec file system behind it, and small objects read and written whole.

It neither lists data sets (`streamio.storage.discovery`) nor reads shards. No file system made here keeps
listings, and each process has its own, so that everything works in forked children.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from streamio.errors import CredentialsError, EndpointError, SchemeError, StreamioError
from streamio.storage.faults import scrub, shown
from streamio.storage.fsoptions import check_endpoint, check_gs, completed
from streamio.storage.retry import Retry, retrying

T = TypeVar("T")

_ALIASES = {"s3a": "s3", "gcs": "gs", "local": "file"}
_PACKAGES = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "adl": "adlfs",
    "oss": "ossfs",
    "hf": "huggingface_hub",
}


def normalise(url: str | os.PathLike[str]) -> str:
    """Write a user's URL in full.

    A plain path becomes an absolute `file://` URL with `~` expanded; schemes are in lower case and by one
    name (`s3a` is `s3`, `gcs` is `gs`); several slashes at the end become one; of a chain
    (`zip://*.jsonl::data.zip`) each part is treated so. Nothing is percent-decoded: keys stand as they are.

    Raises:
        TypeError: Neither a string nor a path.
        ValueError: An empty string.
    """
    text = os.fspath(url) if isinstance(url, (str, os.PathLike)) else url
    if not isinstance(text, str):
        raise TypeError(f"a URL must be a string or a path, not {type(url).__name__}: {str(url)[:80]!r}")
    if not text.strip():
        raise ValueError("a URL must not be empty")
    first, chained, rest = text.partition("::")
    if chained and re.fullmatch(r"[A-Za-z][\w+.-]*(://.*)?", first, re.DOTALL):
        return f"{_lower(first)}::{normalise(rest)}"
    if "://" not in text:
        return _file_url(text)
    text = _lower(text)
    if text.startswith("file://"):
        return _file_url(text[len("file://") :])
    if text.startswith(("http://", "https://")):
        return text
    scheme, _, path = text.partition("://")
    if scheme == "memory":
        path = path.lstrip("/")
    stripped = path.rstrip("/")
    return f"{scheme}://{stripped}/" if stripped and path.endswith("/") else f"{scheme}://{stripped}"


def scheme_of(url: str) -> str:
    """The scheme of a normalised URL; of a chain that of its first part."""
    return re.split("://|::", url, maxsplit=1)[0]


def name_of(url: str) -> str:
    """The last part of the file's own path, by which its format is told: without archive and query."""
    first, chained, rest = url.partition("::")
    if chained and not first.partition("://")[2]:  # a cache, or an archive as a whole
        return name_of(rest)
    if first.startswith(("http://", "https://")):
        first = first.partition("?")[0].partition("#")[0]
    return first.rpartition("/")[2]


def options_for(url: str, storage_options: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Sort a user's `storage_options` by the schemes of a normalised URL.

    A mapping under a scheme's name (`{"s3": {...}, "gs": {...}}`) is for that scheme. All other options are
    for the store, the last part of a chain.

    Returns:
        Scheme (by its normal name) to options; every scheme of the URL is there.
    """
    flat: dict[str, Any] = {}
    named: dict[str, dict[str, Any]] = {}
    for name, value in (storage_options or {}).items():
        if isinstance(value, Mapping) and _is_scheme(name):
            named.setdefault(_ALIASES.get(name, name), {}).update(value)
        else:
            flat[name] = value
    schemes = [scheme_of(part) for part in url.split("::")]
    options = {scheme: named.get(scheme, {}) for scheme in schemes}
    options[schemes[-1]] = {**flat, **options[schemes[-1]]}
    return options


def filesystem(
    url: str, storage_options: Mapping[str, Any] | None = None, *, retry: Retry | None = None
) -> tuple[Any, str]:
    """The fsspec file system of a normalised URL, and the path in it.

    It keeps no listings. For s3://, gs:// and http(s):// an instance is shared by all calls of a process with
    the same options; others are made anew. Requests to s3:// and gs:// have time-outs, and few retries of
    their own unless `storage_options` say otherwise: retrying is `streamio.storage.retry`'s part.

    Raises:
        SchemeError: An unknown scheme, or one whose package is not installed.
        DataNotFoundError: The archive of a chained URL is not there.
        TypeError: The file system does not know an option; an `endpoint_url` that is no string.
        StreamioError: Whatever a chained URL's own store answers.
    """
    from fsspec.core import url_to_fs

    options = options_for(url, storage_options)
    for scheme, given in options.items():
        check_endpoint(url, scheme, given)
    settings = {scheme: completed(scheme, given) for scheme, given in options.items()}
    ours = dict(settings)
    first = scheme_of(url)
    # fsspec takes each scheme's options under its name, those of the first part directly.
    arguments = {**settings.pop(first), **settings}
    if "use_listings_cache" not in arguments:
        arguments["skip_instance_cache"] = True

    def make() -> tuple[Any, str]:
        if "gs" in ours:
            check_gs(ours["gs"])
        fs, path = url_to_fs(url, **arguments)
        if "s3" in getattr(fs, "protocol", ()):
            fs.retries = 1  # s3fs would multiply botocore's tries by five
        return fs, path

    fs, path = guarded(make, url=url, what="opening the file system", retry=retry)
    return fs, path


def guarded(fn: Callable[[], T], *, url: str, what: str, retry: Retry | None = None) -> T:
    """`retrying`, and besides a clear error for what is wrong with the URL or the options themselves.

    Raises:
        SchemeError: An unknown scheme, or one whose package is not installed.
        EndpointError: Not an endpoint, or (from `retrying`) none that answers.
        DataNotFoundError: A bucket name that can't exist, or (from `retrying`) nothing there.
        TypeError: An option that the file system does not know.
        StreamioError: All others of `retrying`.
    """
    try:
        return retrying(fn, url=url, what=what, retry=retry)
    except ImportError as error:
        raise _no_package(url, error) from error
    except CredentialsError:
        _forget(url)
        raise
    except NotAStoreError as error:
        raise EndpointError(f"{shown(url)}: {what}: {error}") from None
    except TypeError as error:
        option = re.search(r"unexpected keyword argument '([^']+)'", str(error))
        if option is None:
            raise
        scheme = scheme_of(url)
        raise TypeError(
            f"{shown(url)}: storage_options: {scheme}:// does not know the option {option[1]!r}. Correct it; "
            f"for URLs of several schemes give each its own: storage_options={{{scheme!r}: {{...}}}}."
        ) from None
    except ValueError as error:
        if isinstance(error, StreamioError):
            raise
        if str(error).startswith("Protocol not known"):
            raise SchemeError(
                f"{shown(url)}: fsspec knows no scheme {scheme_of(url)!r}. Correct it; a local file needs none."
            ) from error
        if str(error).startswith("Invalid endpoint"):
            raise EndpointError(
                f"{shown(url)}: {scrub(str(error))}: endpoint_url must begin with http:// or https://."
            ) from None
        raise


class NotAStoreError(Exception):
    """What answers does not speak the store's protocol; `guarded` makes an EndpointError of it."""


def bounded(fs: Any, method: str, *args: Any, seconds: float, **kwargs: Any) -> Any:
    """Call a method of a file system; a network client has `seconds` for it, inner retries and all.

    Raises:
        OSError: What keeps the endpoint from being reached, where that is the reason, else a time-out.
    """
    from fsspec.asyn import sync
    from fsspec.exceptions import FSTimeoutError

    if not getattr(fs, "async_impl", False):
        return getattr(fs, method)(*args, **kwargs)
    try:
        return sync(fs.loop, getattr(fs, f"_{method}"), *args, timeout=seconds, **kwargs)
    except FSTimeoutError:
        # gcsfs tries on for half a minute and hides why: look for ourselves, so that the message can tell.
        endpoint = urlsplit(str(getattr(fs, "base", "") or getattr(fs, "endpoint_url", "") or ""))
        if endpoint.hostname:
            port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
            try:
                with socket.create_connection((endpoint.hostname, port), timeout=2) as connection:
                    if endpoint.scheme == "https":  # does it speak TLS at all?
                        context = ssl.create_default_context()
                        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                        context.wrap_socket(connection).close()
            except OSError as error:
                raise type(error)(error.errno, f"{endpoint.hostname}:{port}: {error.strerror}") from None
        raise


def full_url(fs: Any, path: str, original: str) -> str:
    """The full URL of a path that a listing of `original` (a normalised URL) gave."""
    first, chained, rest = original.partition("::")
    if chained and "://" not in first:  # a cache before a store: paths are the store's
        inner = getattr(fs, "fs", None)
        return f"{first}::{full_url(inner, path, rest)}" if inner is not None else f"{first}://{path}::{rest}"
    if chained:
        return f"{scheme_of(first)}://{path.lstrip('/')}::{rest}"
    scheme = scheme_of(first)
    if path.startswith(f"{scheme}://"):
        return path
    if scheme in ("s3", "gs", "memory"):
        return f"{scheme}://{path.lstrip('/')}"
    if scheme == "file":
        return f"file://{path}"
    # Schemes that keep a host, user or branch out of their paths: it stands before the part that is the path.
    base = fs._strip_protocol(first.rstrip("/"))  # noqa: SLF001 - how fsspec itself tells the path of a URL
    if base.strip("/") and first.rstrip("/").endswith(base):
        return first.rstrip("/")[: -len(base)] + path
    return str(fs.unstrip_protocol(path))


_held: list[list[Any]] = []


def _hold_file_systems() -> None:
    """Keep a parent's file systems alive in the child that is about to be forked, unused.

    fsspec drops them there. That closes their connections in the child, which takes these out of the epoll set that
    both processes share: the parent would wait for answers that it never hears of. They are noted before the fork,
    since fsspec's own hook in the child may run before any of ours.
    """
    registry = getattr(sys.modules.get("fsspec.registry"), "registry", {})
    _held.append([fs for cls in list(registry.values()) for fs in list(getattr(cls, "_cache", {}).values())])


os.register_at_fork(before=_hold_file_systems, after_in_parent=_held.pop)


def _is_scheme(name: str) -> bool:
    if name in _ALIASES.values() or name in _ALIASES or name.endswith("_kwargs"):  # without the import
        return not name.endswith("_kwargs")
    import fsspec

    return name in fsspec.available_protocols()


def _lower(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    return f"{_ALIASES.get(scheme, scheme)}{separator}{rest}"


def _file_url(path: str) -> str:
    # An absolute path keeps its slashes but for those at the end; `..` goes as the shell's `cd` has it.
    absolute = Path(os.path.abspath(Path(path).expanduser())).as_posix()  # noqa: PTH100 - resolve() follows links
    return f"file://{absolute}/" if path.endswith("/") and absolute != "/" else f"file://{absolute}"


def _forget(url: str) -> None:
    """Keep no file system that has looked for credentials in vain: in a notebook they may be set by the next call."""
    registry = getattr(sys.modules.get("fsspec.registry"), "registry", {})
    schemes = {scheme_of(part) for part in url.split("::")}
    for scheme in {alias for alias in (*_ALIASES, *schemes) if _ALIASES.get(alias, alias) in schemes}:
        if scheme in registry:
            registry[scheme].clear_instance_cache()


def _no_package(url: str, error: ImportError) -> SchemeError:
    scheme = scheme_of(url)
    missing = getattr(error.__cause__ or error, "name", None)
    package = _PACKAGES.get(scheme) or {"s3": "s3fs", "gs": "gcsfs"}.get(scheme) or missing
    advice = f"pip install {package}" if package else scrub(str(error))
    return SchemeError(
        f"{shown(url)}: {scheme}:// needs a package that is not installed or can't be imported "
        f"({scrub(str(error))}): {advice}"
    )
