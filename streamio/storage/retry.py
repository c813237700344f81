"""The one retry policy of all storage calls: which waits, until when, and how often a process may retry.

It does no I/O; what an exception means is told by `streamio.storage.faults`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)
from tenacity.wait import wait_base

from streamio.errors import StreamioError
from streamio.storage.faults import Fault, call_error, classify, shown

logger = logging.getLogger(__name__)
T = TypeVar("T")

BURST = 100
"""Retries that a process may make at once."""
RATE = 10.0
"""Retries a second that it may make after these."""


@dataclass(frozen=True)
class Retry:
    """When to try again: exponential backoff with full jitter, a deadline, the process's retry budget.

    Attributes:
        deadline: Seconds without progress after which an operation fails; 300 by default.
        initial: Upper bound of the first wait in seconds, doubled for each further one; 0.1 by default.
        maximum: Upper bound of any wait in seconds; 20 by default.

    Raises:
        ValueError: A value is negative, or `initial` is more than `maximum`.
    """

    deadline: float = 300.0
    initial: float = 0.1
    maximum: float = 20.0

    def __post_init__(self) -> None:
        for name in ("deadline", "initial", "maximum"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise ValueError(f"retry {name} must be a number of seconds >= 0, not {value!r}")
        if self.initial > self.maximum:
            raise ValueError(f"retry initial ({self.initial} s) must not be more than maximum ({self.maximum} s)")

    def policy(
        self,
        *,
        url: str,
        what: Callable[[], str],
        judge: Callable[[BaseException], Fault] = classify,
        on_retry: Callable[[Fault], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Arguments for tenacity's `Retrying` and `AsyncRetrying`.

        Args:
            url: What is worked on, for the log.
            what: Tells what is being done, for the log.
            judge: Tells what an exception means.
            on_retry: Hears of the cause of each retry.
        """

        def announce(state: RetryCallState) -> None:
            fault = judge(_failure(state))
            on_retry(fault)
            _warn(url, what(), state, fault)

        backoff = wait_random_exponential(multiplier=self.initial, max=self.maximum)
        return {
            "retry": retry_if_exception(lambda error: judge(error).transient),
            "stop": stop_after_delay(self.deadline),
            "wait": _Wait(backoff, process_tokens(), self.deadline),
            "before_sleep": announce,
            "reraise": True,
        }


def made_progress(state: RetryCallState) -> None:
    """Let deadline and backoff count from now on: the operation got somewhere."""
    state.start_time = time.monotonic()
    state.attempt_number = 1


def retrying(fn: Callable[[], T], *, url: str, what: str, retry: Retry | None = None) -> T:
    """Call a blocking storage function until it succeeds or fails for good.

    Args:
        fn: Called without arguments; it must be safe to repeat.
        url: What it works on, for messages.
        what: What it does, for messages ("listing", "writing the status").
        retry: The policy; by default `Retry()`.

    Returns:
        What `fn` returns.

    Raises:
        StreamioError: `DataNotFoundError`, `AccessError`, `CredentialsError`, `EndpointError` (transient
            until the deadline) or `ReadError`. `FileExistsError`, and what no storage client raises, pass.
    """
    began = time.monotonic()
    attempts = 0

    def attempt() -> T:
        nonlocal attempts
        attempts += 1
        return fn()

    try:
        return Retrying(**(retry or Retry()).policy(url=url, what=lambda: what))(attempt)
    except (StreamioError, FileExistsError):
        raise
    except Exception as error:
        fault = classify(error)
        if fault.kind == "foreign":
            raise
        seconds = time.monotonic() - began
        # Not chained: the client's own text may hold parts of signed requests.
        raise call_error(fault, url=url, what=what, attempts=attempts, seconds=seconds) from None


class Tokens:
    """A bucket of retries: `burst` at once, then `rate` a second; who comes later waits longer."""

    def __init__(self, burst: int = BURST, rate: float = RATE) -> None:
        self._interval = 1.0 / rate
        self._slack = (burst - 1) * self._interval
        self._next = 0.0
        self._lock = threading.Lock()

    def reserve(self) -> float:
        """Take one token; seconds until it may be used."""
        now = time.monotonic()
        with self._lock:
            self._next = max(self._next, now - self._slack)
            wait = max(0.0, self._next - now)
            self._next += self._interval
        return wait


class _Process:
    """What all retries of a process share; made anew in a forked child, whose copy of a lock may be held."""

    def __init__(self) -> None:
        self.tokens = Tokens()
        self.warned = 0
        self.lock = threading.Lock()


_process = _Process()


def _renew() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_renew)


def process_tokens() -> Tokens:
    """The bucket that all retries of this process draw from."""
    return _process.tokens


class _Wait(wait_base):
    """The longer one of backoff and token, and never past the deadline."""

    def __init__(self, backoff: wait_base, tokens: Tokens, deadline: float) -> None:
        self._backoff = backoff
        self._tokens = tokens
        self._deadline = deadline

    def __call__(self, retry_state: RetryCallState) -> float:
        wait = max(self._backoff(retry_state), self._tokens.reserve())
        return min(wait, max(0.0, self._deadline - (retry_state.seconds_since_start or 0.0)))


def _failure(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    return error or RuntimeError("no failure")


def _warn(url: str, what: str, state: RetryCallState, fault: Fault) -> None:
    """One line for the first retry of this process, then for every tenth."""
    with _process.lock:
        _process.warned += 1
        count = _process.warned
    logger.log(
        logging.WARNING if count == 1 or count % 10 == 0 else logging.DEBUG,
        "retry %d of this process: %s: %s failed (%s), attempt %d without progress; again in %.1f s",
        count,
        shown(url),
        what,
        fault.text,
        state.attempt_number,
        state.next_action.sleep if state.next_action else 0.0,
    )
