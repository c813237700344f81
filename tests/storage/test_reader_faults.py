"""Reads over a real server that misbehaves: each is mended, or told, and what was read is never read twice."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from streamio.errors import AccessError, ReadError, ShardChangedError
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.retry import Retry
from streamio.storage.shards import Shard
from tests.servers.faults import (
    Fault,
    Rule,
    close,
    cut_after,
    ignore_range,
    passed,
    replace_once,
    reset_after,
    short,
    stall,
    status,
)

DATA = random.Random(2).randbytes(1_000_000)
CHUNK = 64 << 10  # what is lost at most when a connection breaks
ENGINES = ("obstore", "fsspec")


@pytest.fixture
def shard(faulty: Any) -> Shard:
    return Shard(faulty.put("data.bin", DATA), len(DATA), faulty.etag("data.bin").strip('"'))


@pytest.fixture(params=ENGINES)
def reader(faulty: Any, request: pytest.FixtureRequest) -> Iterator[Reader]:
    with make(faulty, engine=request.param) as reader:
        yield reader


def make(faulty: Any, **changes: Any) -> Reader:
    values: dict[str, Any] = {"retry": Retry(deadline=10, initial=0.01, maximum=0.05), "stall_timeout": 5}
    return Reader(ReadSettings(faulty.storage_options, **{**values, **changes}))


def starts(faulty: Any) -> list[int]:
    """The first byte that each request asked for."""
    return [int(re.findall(r"\d+", request.range)[0]) for request in faulty.proxy.requests]


@pytest.mark.parametrize("number", [503, 500, 429])
def test_a_shard_that_answers_three_times_with_an_error_is_read_whole(
    faulty: Any, shard: Shard, reader: Reader, number: int
) -> None:
    faulty.proxy.add(Rule(status(number), times=3))
    assert b"".join(reader.source(shard).stream()) == DATA
    assert (reader.counters.requests, reader.counters.retries) == (4, 3)
    assert reader.counters.bytes_read == len(DATA)


@pytest.mark.parametrize("fault", [reset_after(400_000), cut_after(400_000)], ids=["reset", "cut short"])
def test_a_read_that_breaks_goes_on_at_the_byte_it_has_reached(
    faulty: Any, shard: Shard, reader: Reader, fault: Fault
) -> None:
    faulty.proxy.add(Rule(fault), Rule(fault), Rule(fault))
    assert b"".join(reader.source(shard).stream()) == DATA
    reached = starts(faulty)
    assert reached[0] == 0
    if reader.settings.engine == "obstore":  # its first attempt comes in one piece, or not at all
        assert reached.pop(0) == reached[0]
    assert len(reached) >= 3
    for before, after in itertools.pairwise(reached):
        assert before + 400_000 - CHUNK < after <= before + 400_000
    assert {request.if_match for request in faulty.proxy.requests} == {f'"{shard.version}"'}
    assert reader.counters.bytes_read == len(DATA)  # nothing twice


def test_a_connection_closed_without_an_answer_is_tried_again(faulty: Any, shard: Shard, reader: Reader) -> None:
    faulty.proxy.add(Rule(close(), times=2))
    assert reader.source(shard).read(0, 1000) == DATA[:1000]
    assert len(faulty.proxy.requests) == 3
    assert reader.counters.retries >= 1  # aiohttp itself repeats once on a connection that was closed


@pytest.mark.parametrize("honest", [False, True])
def test_a_206_that_is_itself_short_is_noticed_and_completed(
    faulty: Any, shard: Shard, reader: Reader, honest: bool
) -> None:
    faulty.proxy.add(Rule(short(300_000, honest=honest)))
    assert reader.source(shard).read(0, len(DATA)) == DATA
    assert reader.counters.retries == 1


def test_a_200_in_place_of_a_206_is_not_taken_for_the_range(faulty: Any, shard: Shard, reader: Reader) -> None:
    faulty.proxy.add(Rule(ignore_range(), times=2))
    assert reader.source(shard).read(500_000, 600_000) == DATA[500_000:600_000]
    assert reader.counters.retries == 2


def test_a_shard_overwritten_in_mid_read_is_an_error_and_never_a_blend(
    faulty: Any, shard: Shard, reader: Reader
) -> None:
    other = bytes(len(DATA))
    reset = Rule(reset_after(400_000), times=2)
    faulty.proxy.add(reset, Rule(replace_once(lambda: faulty.put("data.bin", other))))
    with pytest.raises(ShardChangedError, match=r"data\.bin: bytes \d+-999999: .*overwritten since it was listed"):
        list(reader.source(shard).stream())


@pytest.mark.parametrize("after", [None, 300_000])
def test_a_stall_ends_by_time_out_and_the_read_goes_on(faulty: Any, shard: Shard, after: int | None) -> None:
    for engine in ENGINES:
        faulty.proxy.clear()
        faulty.proxy.add(Rule(stall(30, after=after)))
        began = time.monotonic()
        with make(faulty, engine=engine, stall_timeout=0.5) as reader:
            assert reader.source(shard).read(0, len(DATA)) == DATA
        assert time.monotonic() - began < 10
        assert starts(faulty)[1] > (after - CHUNK if engine == "fsspec" and after else -1)


def test_progress_starts_deadline_and_backoff_anew(faulty: Any, shard: Shard) -> None:
    # 12 breaks, each after a quarter of the deadline: more than the deadline in all.
    faulty.proxy.delay(0.25)
    faulty.proxy.add(Rule(reset_after(80_000), times=12))
    with make(faulty, retry=Retry(deadline=1, initial=0.01, maximum=0.02)) as reader:
        began = time.monotonic()
        assert reader.source(shard).read(0, len(DATA)) == DATA
        assert time.monotonic() - began > 2
        assert reader.counters.retries == 12


def test_after_the_last_retry_the_error_names_url_bytes_attempts_and_cause(
    faulty: Any, shard: Shard, reader: Reader
) -> None:
    faulty.proxy.add(Rule(status(503), times=None))
    with make(faulty, engine=reader.settings.engine, retry=Retry(2, 0.01, 0.02)) as impatient:
        source = impatient.source(shard)
        with pytest.raises(ReadError) as caught:
            source.read(10, 20)
    text = str(caught.value)
    assert re.search(rf"^{shard.url}: bytes 10-19: given up after \d+ attempts, .* 503 SlowDown", text), text
    for secret in ("key", "secret"):
        assert faulty.storage_options[secret] not in text


def test_an_endpoint_that_nobody_serves_is_told_after_the_deadline(faulty: Any, shard: Shard) -> None:
    options = {**faulty.storage_options, "endpoint_url": "http://127.0.0.1:9"}
    for engine in ENGINES:
        settings = ReadSettings(options, retry=Retry(0.3, 0.01, 0.02), engine=engine)  # type: ignore[arg-type]
        with Reader(settings) as reader, pytest.raises(ReadError, match="Check the endpoint"):
            reader.source(shard).read(0, 10)


def test_a_403_is_told_at_once(faulty: Any, shard: Shard, reader: Reader) -> None:
    faulty.proxy.add(Rule(status(403), times=None))
    with pytest.raises(AccessError, match=r"data\.bin: bytes 0-9: access denied \(403 AccessDenied"):
        reader.source(shard).read(0, 10)
    assert reader.counters.requests == 1


def test_expired_credentials_are_tried_again(faulty: Any, shard: Shard, reader: Reader) -> None:
    faulty.proxy.add(Rule(status(400, "ExpiredToken"), times=2))
    assert reader.source(shard).read(0, 10) == DATA[:10]
    assert reader.counters.retries == 2


def test_credentials_that_were_good_and_are_refused_are_tried_again(faulty: Any, shard: Shard, reader: Reader) -> None:
    refused = Rule(status(403, "InvalidAccessKeyId"), times=2)
    faulty.proxy.add(Rule(passed()), refused)
    assert reader.source(shard).read(0, 10) == DATA[:10]
    assert reader.source(shard).read(10, 20) == DATA[10:20]
    assert refused.times == 0


def test_a_storm_of_errors_is_survived_by_all_readers(faulty: Any, shard: Shard) -> None:
    faulty.proxy.add(Rule(status(503), times=30), Rule(reset_after(20_000), times=10))
    with make(faulty, part_bytes=50_000) as reader:
        assert b"".join(reader.source(shard).stream()) == DATA
        assert reader.counters.retries == 40


def test_retries_are_warned_of_with_url_byte_and_cause(
    faulty: Any, shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    from streamio.storage import retry

    retry._renew()
    faulty.proxy.add(Rule(reset_after(400_000)))
    with make(faulty) as reader:
        assert b"".join(reader.source(shard).stream()) == DATA
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(rf"{shard.url}: bytes 0-999999 failed \(the connection broke\)", line), line
