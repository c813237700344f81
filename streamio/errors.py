"""Every error that streamio raises, each with the built-in type that people already catch.

Messages name the URL, record or option and the remedy; credentials never stand in one.
"""

from __future__ import annotations


class StreamioError(Exception):
    """Base of all of streamio's errors."""


class DataNotFoundError(StreamioError, FileNotFoundError):
    """Nothing lies at a URL: no such bucket, folder or object, or a glob that matches none."""


class AccessError(StreamioError, PermissionError):
    """The store answered that these credentials may not do this (403)."""


class CredentialsError(StreamioError, PermissionError):
    """No credentials were found, or the store does not know them (401)."""


class EndpointError(StreamioError, ConnectionError):
    """The endpoint can't be reached, does not speak the protocol, or did not answer in time."""


class SchemeError(StreamioError, ValueError):
    """A URL scheme that fsspec does not know, or whose package is not installed."""


class FormatError(StreamioError, ValueError):
    """A file whose format is unknown, or which is not what its format or options ask for."""


class ReadError(StreamioError, OSError):
    """A read failed for good: after the last retry, or for a reason that retrying can't mend."""


class ShardChangedError(ReadError):
    """A shard is no longer the object that was listed: it was overwritten, cut or removed in the meantime."""


class TooManyDropsError(StreamioError, RuntimeError):
    """More records were dropped than `max_drops` allows, or an epoch has not one good record."""


class StatusError(StreamioError, ValueError):
    """A status that can't be used: torn, foreign, newer, damaged, or made of other data or options."""


class TopologyError(StreamioError, ValueError):
    """Ranks, workers, lanes or batch sizes that do not go together."""


class GroupError(StreamioError, RuntimeError):
    """Something that all ranks do together did not come about: it names the ranks that are missing or differ."""


class WorkerError(StreamioError, RuntimeError):
    """A loader's worker died, hung, or can't be started."""


class DropRecord(Exception):  # noqa: N818 - it is a request, not an error
    """Raise it in a `map` to leave a record out: it is counted and reported as a drop.

    Args:
        reason: A short word under which drops are counted (`"too_long"`).
        message: What is wrong with this record.
    """

    def __init__(self, reason: str = "map", message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = str(reason)
        self.message = str(message or reason)
