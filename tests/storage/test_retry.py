"""The retry policy: what is tried again, how long, and how fast."""

from __future__ import annotations

import logging
import os
import time

import pytest

from streamio.errors import AccessError, DataNotFoundError, EndpointError, ReadError
from streamio.storage import retry as module
from streamio.storage.retry import Retry, Tokens, retrying

FAST = Retry(deadline=5, initial=0.01, maximum=0.05)


class Failing:
    """Raises the given errors, one a call, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_a_call_that_fails_for_a_while_is_repeated_until_it_succeeds() -> None:
    fn = Failing(TimeoutError(), ConnectionResetError(), OSError(5, "EIO"))
    assert retrying(fn, url="s3://b/k", what="listing", retry=FAST) == "answer"
    assert fn.calls == 4


@pytest.mark.parametrize(
    ("error", "kind"), [(FileNotFoundError("x"), DataNotFoundError), (PermissionError("x"), AccessError)]
)
def test_what_a_repetition_does_not_mend_is_raised_at_once_with_url_and_purpose(
    error: Exception, kind: type[Exception]
) -> None:
    fn = Failing(error)
    with pytest.raises(kind, match=r"s3://b/k: writing the status: "):
        retrying(fn, url="s3://b/k", what="writing the status", retry=FAST)
    assert fn.calls == 1


def test_after_the_deadline_the_error_tells_attempts_and_the_last_cause() -> None:
    began = time.monotonic()
    with pytest.raises(EndpointError, match=r"given up after \d+ attempts, .*no answer today"):
        retrying(
            Failing(*[TimeoutError("no answer today")] * 1000),
            url="s3://b/k",
            what="listing",
            retry=Retry(deadline=0.3, initial=0.01, maximum=0.05),
        )
    assert 0.3 <= time.monotonic() - began < 2


def test_an_error_that_is_none_of_storage_passes_unchanged_and_is_not_repeated() -> None:
    for error in (KeyError("mine"), FileExistsError("there")):
        fn = Failing(error)
        with pytest.raises(type(error)) as caught:
            retrying(fn, url="s3://b/k", what="listing", retry=FAST)
        assert caught.value is error
        assert fn.calls == 1


def test_other_answers_of_the_system_are_read_errors() -> None:
    with pytest.raises(ReadError, match="IsADirectoryError"):
        retrying(Failing(IsADirectoryError("x")), url="file:///x", what="reading", retry=FAST)


def test_a_keyboard_interrupt_is_never_taken_for_a_failure() -> None:
    def fn() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrying(fn, url="s3://b/k", what="listing", retry=FAST)


@pytest.mark.parametrize(
    "wrong", [{"deadline": -1}, {"initial": float("inf")}, {"maximum": "1"}, {"initial": 2, "maximum": 1}]
)
def test_values_that_make_no_sense_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"retry {next(iter(wrong))}"):
        Retry(**wrong)


def test_tokens_give_a_burst_at_once_and_then_their_rate() -> None:
    tokens = Tokens(burst=5, rate=10)
    waits = [tokens.reserve() for _ in range(8)]
    assert waits[:5] == [0.0] * 5
    assert waits[5:] == pytest.approx([0.1, 0.2, 0.3], abs=0.05)


def test_tokens_come_back_with_time() -> None:
    tokens = Tokens(burst=2, rate=20)
    tokens.reserve(), tokens.reserve()
    time.sleep(0.12)
    assert [tokens.reserve() for _ in range(2)] == [0.0, 0.0]
    assert tokens.reserve() > 0


def test_a_storm_is_slowed_by_the_budget_but_does_not_fail_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._process, "tokens", Tokens(burst=1, rate=10))
    fn = Failing(*[TimeoutError()] * 6)
    began = time.monotonic()
    assert retrying(fn, url="s3://b/k", what="listing", retry=Retry(5, 0.0, 0.0)) == "answer"
    assert 0.4 <= time.monotonic() - began < 2  # 6 retries, the first for free


def test_no_wait_goes_past_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._process, "tokens", Tokens(burst=1, rate=0.01))
    began = time.monotonic()
    with pytest.raises(EndpointError):
        retrying(Failing(*[TimeoutError()] * 9), url="s3://b/k", what="listing", retry=Retry(0.5, 0.01, 0.02))
    assert time.monotonic() - began < 2


def test_waits_are_jittered_below_a_doubling_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    retrying(Failing(*[TimeoutError()] * 12), url="s3://b/k", what="listing", retry=Retry(60, 0.1, 1.0))
    assert len(slept) == 12
    assert all(wait <= min(1.0, 0.1 * 2**number) for number, wait in enumerate(slept))
    assert len({round(wait, 6) for wait in slept}) > 6


def test_retries_are_warned_of_once_and_then_by_tens(caplog: pytest.LogCaptureFixture) -> None:
    module._renew()
    with caplog.at_level(logging.WARNING, logger="streamio"):
        retrying(Failing(*[TimeoutError("slow")] * 25), url="s3://b/k", what="listing", retry=Retry(5, 0.0, 0.0))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[1] for line in lines] == ["1", "10", "20"]
    assert "s3://b/k: listing failed (TimeoutError: slow)" in lines[0]


def test_a_forked_child_begins_with_a_full_budget_and_a_free_lock() -> None:
    process = module._process
    process.lock.acquire()
    try:
        pid = os.fork()
        if pid == 0:
            fresh = module._process is not process and module._process.lock.acquire(timeout=5)
            os._exit(0 if fresh else 1)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        process.lock.release()
