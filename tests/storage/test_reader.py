"""The reader on real stores: what is read, in which order, ahead of whom, and how it ends."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import AccessError, CredentialsError, ReadError, ShardChangedError
from streamio.formats.base import Source
from streamio.storage import reader as module
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.retry import Retry
from streamio.storage.shards import Shard
from tests.servers.faults import Rule, stall, status

KIB = 1024
DATA = random.Random(1).randbytes(1000 * KIB)
FAST = Retry(deadline=10, initial=0.01, maximum=0.05)


def settings(bucket: Any, **changes: Any) -> ReadSettings:
    values: dict[str, Any] = {"part_bytes": 100 * KIB, "retry": FAST, "stall_timeout": 5}
    return ReadSettings(storage_options=bucket.storage_options, **{**values, **changes})


def put(bucket: Any, key: str = "data.bin", data: bytes = DATA) -> Shard:
    return Shard(bucket.put(key, data), len(data), bucket.etag(key).strip('"'))


@pytest.fixture
def local(tmp_path: Path) -> Shard:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    return Shard(path.as_uri(), len(DATA))


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Reader(ReadSettings(part_bytes=100 * KIB, retry=FAST)) as reader:
        yield reader


def check_all_ways(reader: Reader, shard: Shard) -> None:
    source: Source = reader.source(shard)
    assert (source.url, source.size) == (shard.url, shard.size)
    assert b"".join(source.stream()) == DATA
    assert b"".join(source.stream(12_345)) == DATA[12_345:]
    assert b"".join(source.stream(12_345, 700_001)) == DATA[12_345:700_001]
    assert source.read(0, 1) == DATA[:1]
    assert source.read(90 * KIB, 350 * KIB) == DATA[90 * KIB : 350 * KIB]
    assert source.read(len(DATA) - 1, len(DATA)) == DATA[-1:]
    assert source.read(7, 7) == b""
    ranges = [(500_000, 900_000), (10, 20), (15, 30), (21, 21), (999_000, len(DATA)), (10, 20)]
    assert source.read_many(ranges) == [DATA[a:b] for a, b in ranges]
    assert list(source.stream(5, 5)) == []
    assert reader.budget.held == 0


def test_s3_is_read_whole_and_in_pieces(s3: Any) -> None:
    with Reader(settings(s3)) as reader:
        check_all_ways(reader, put(s3))
        assert reader.counters.retries == 0


def test_gs_is_read_whole_and_in_pieces(gcs: Any) -> None:
    with Reader(settings(gcs)) as reader:
        check_all_ways(reader, put(gcs))
        assert reader.counters.retries == 0


def test_files_are_read_whole_and_in_pieces(reader: Reader, local: Shard) -> None:
    check_all_ways(reader, local)


def test_memory_is_read_whole_and_in_pieces(reader: Reader) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/reader/data.bin", DATA)
    check_all_ways(reader, Shard("memory://reader/data.bin", len(DATA)))


def test_an_empty_shard_needs_no_request(reader: Reader, tmp_path: Path) -> None:
    source = reader.source(Shard(f"{tmp_path.as_uri()}/not-there", 0))
    assert list(source.stream()) == []
    assert source.read(0, 0) == b""
    assert reader.counters.requests == 0


@pytest.mark.parametrize("bounds", [(-1, 5), (5, 4), (0, len(DATA) + 1)])
def test_a_range_outside_the_shard_is_refused(reader: Reader, local: Shard, bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"data\.bin: bytes .* do not lie within its 1024000 bytes"):
        reader.source(local).read(*bounds)
    with pytest.raises(ValueError, match="do not lie within"):
        reader.source(local).stream(*bounds)


def test_ranges_that_lie_close_together_take_one_request(faulty: Any) -> None:
    shard = put(faulty)
    with Reader(settings(faulty, part_bytes=1 << 20)) as reader:
        ranges = [(200_000, 200_100), (0, 1000), (2000, 3000), (6000, 60_000)]
        assert reader.source(shard).read_many(ranges) == [DATA[a:b] for a, b in ranges]
    asked = sorted(request.range for request in faulty.proxy.requests)
    assert asked == ["bytes=0-59999", "bytes=200000-200099"]


def test_many_threads_read_at_once(s3: Any) -> None:
    shards = [put(s3, f"part {number}.bin", DATA[number:]) for number in range(6)]
    wrong: list[int] = []

    def work(number: int) -> None:
        source = reader.source(shards[number])
        if b"".join(source.stream()) != DATA[number:] or source.read(5, 500_000) != DATA[number:][5:500_000]:
            wrong.append(number)

    with Reader(settings(s3, prefetch_bytes=300 * KIB)) as reader:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert wrong == []
        assert reader.budget.held == 0
        assert reader.counters.bytes_read == sum(2 * (shard.size + min(500_000, shard.size) - 5) for shard in shards)


@pytest.mark.parametrize("key", ["a b/ü~%20+&=#.bin", "%2e%2e/%2F", "a//b", "/a", "a/../b", "./c", "trail/"])
def test_keys_of_all_kinds_are_read_and_none_for_another(localstack_s3: Any, key: str) -> None:
    bucket = localstack_s3
    for near in {key.strip("/"), key.replace("//", "/"), "b", "c"} - {key}:
        bucket.put(near, bytes(5000))
    shard = Shard(bucket.put(key, DATA[:5000]), 5000)
    with Reader(settings(bucket)) as reader:
        assert reader.source(shard).read(0, 5000) == DATA[:5000]


# Read-ahead


def test_a_stream_reads_ahead_while_its_consumer_works_but_not_beyond_the_budget(faulty: Any) -> None:
    shard = put(faulty)
    with Reader(settings(faulty, prefetch_bytes=350 * KIB)) as reader:
        stream = reader.source(shard).stream()
        next(stream)
        deadline = time.monotonic() + 5
        while len(faulty.proxy.requests) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        assert len(faulty.proxy.requests) == 3  # one part is with the consumer, two are on their way
        assert reader.budget.held == 300 * KIB
        stream.close()  # type: ignore[attr-defined]
        assert reader.budget.held == 0


def test_the_budget_is_kept_over_a_whole_read_and_a_stream_needs_no_more_than_one_part(local: Shard) -> None:
    for limit in (1, 100 * KIB, 250 * KIB):
        with Reader(ReadSettings(part_bytes=100 * KIB, prefetch_bytes=limit)) as reader:
            assert b"".join(reader.source(local).stream()) == DATA
            assert reader.budget.peak <= max(limit, 100 * KIB)


def test_two_streams_that_share_a_small_budget_both_end(local: Shard) -> None:
    with Reader(ReadSettings(part_bytes=100 * KIB, prefetch_bytes=150 * KIB)) as reader:
        one, two = reader.source(local).stream(), reader.source(local).stream()
        pairs = list(zip(one, two, strict=True))
        assert b"".join(a for a, _ in pairs) == b"".join(b for _, b in pairs) == DATA


def test_memory_does_not_grow_with_the_length_of_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    with path.open("wb") as file:
        file.truncate(512 << 20)
    program = f"""
        import resource
        from streamio.storage.reader import Reader, ReadSettings
        from streamio.storage.shards import Shard
        with Reader(ReadSettings(prefetch_bytes=16 << 20)) as reader:
            source = reader.source(Shard({path.as_uri()!r}, 512 << 20))
            next(source.stream())
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert sum(map(len, source.stream())) == 512 << 20
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 48 << 10, grown
    """
    run(program)


def test_a_hint_is_fetched_in_the_background_and_picked_up(faulty: Any) -> None:
    shard = put(faulty)
    with Reader(settings(faulty, prefetch_bytes=250 * KIB)) as reader:
        assert not reader.hint(shard, 0, len(DATA))
        wait_for(lambda: reader.counters.bytes_read == 200 * KIB)
        before = len(faulty.proxy.requests)
        assert next(reader.source(shard).stream())
        assert len(faulty.proxy.requests) <= before + 1
        assert b"".join(reader.source(shard).stream()) == DATA
        assert reader.budget.held == 0


def test_a_hint_serves_a_read_and_what_of_it_is_not_wanted_is_dropped(local: Shard, reader: Reader) -> None:
    reader.hint(local, 0, len(DATA))
    assert reader.source(local).read(0, 150 * KIB) == DATA[: 150 * KIB]
    assert reader.budget.held == 0
    reader.hint(local, 5, 300 * KIB)
    assert b"".join(reader.source(local).stream(5, 500 * KIB)) == DATA[5 : 500 * KIB]
    assert reader.budget.held == 0


def test_a_hint_beyond_the_budget_is_no_error(local: Shard) -> None:
    with Reader(ReadSettings(part_bytes=100 * KIB, prefetch_bytes=50 * KIB)) as reader:
        reader.hint(local, 0, len(DATA))
        assert reader.budget.held == 0
        assert reader.counters.requests == 0


def test_a_failed_hint_is_tried_again_by_the_read_itself(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "late.bin"
    shard = Shard(path.as_uri(), len(DATA))
    reader.hint(shard, 0, len(DATA))
    wait_for(lambda: all(part.failed for part in reader._parts))
    path.write_bytes(DATA)
    assert b"".join(reader.source(shard).stream()) == DATA


def test_a_forgotten_hint_frees_its_bytes(local: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(ReadSettings(part_bytes=100 * KIB, prefetch_bytes=200 * KIB)) as reader:
        reader.hint(local, 1, len(DATA))
        assert reader.budget.held > 190 * KIB
        reader.hint(local, 2, len(DATA))  # the first one is young: no room
        assert list(reader._hints) == [(local.url, 1)]
        monkeypatch.setattr(module, "HINT_LIFE", 0.0)
        reader.hint(local, 3, len(DATA))
        assert list(reader._hints) == [(local.url, 3)]
        reader.close()
        assert reader.budget.held == 0


def test_one_hint_given_twice_is_fetched_once(local: Shard, reader: Reader) -> None:
    reader.hint(local, 0, 100 * KIB)
    reader.hint(local, 0, 100 * KIB)
    assert reader.source(local).read(0, 100 * KIB) == DATA[: 100 * KIB]
    assert reader.counters.requests == 1


def test_a_hint_given_again_goes_on_with_what_has_become_free_and_tells_when_it_is_complete(local: Shard) -> None:
    with Reader(ReadSettings(part_bytes=100 * KIB, prefetch_bytes=300 * KIB)) as reader:
        reader.budget.force(200 * KIB)
        assert not reader.hint(local, 0, 300 * KIB)
        assert not reader.hint(local, 0, 300 * KIB)
        wait_for(lambda: reader.counters.requests == 1)
        assert reader.budget.held == 300 * KIB
        reader.budget.release(200 * KIB)
        assert reader.hint(local, 0, 300 * KIB)
        assert reader.hint(local, 0, 300 * KIB)
        assert b"".join(reader.source(local).stream(0, 500 * KIB)) == DATA[: 500 * KIB]
        assert reader.counters.requests == 5
        assert reader.budget.held == 0
        assert reader.hint(local, 0, 0)


def test_a_hint_that_is_repeated_is_not_forgotten(local: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HINT_LIFE", 0.3)
    with Reader(ReadSettings(part_bytes=100 * KIB, prefetch_bytes=200 * KIB)) as reader:
        for _ in range(4):
            reader.hint(local, 0, len(DATA))
            time.sleep(0.1)
        reader.hint(local, 1, len(DATA))
        assert list(reader._hints) == [(local.url, 0)]


def test_the_next_shard_is_fetched_as_far_as_the_budget_goes_while_one_is_read(faulty: Any) -> None:
    one, two = put(faulty, "one.bin"), put(faulty, "two.bin")
    faulty.proxy.delay(0.05)
    with Reader(settings(faulty, prefetch_bytes=1 << 20)) as reader:
        asked: list[int] = []
        for chunk in reader.source(one).stream():
            assert len(chunk)
            reader.hint(two, 0, two.size)
            asked.append(sum("two" in request.path for request in faulty.proxy.requests))
        wait_for(lambda: sum("two" in request.path for request in faulty.proxy.requests) >= 9)
        assert asked[0] == 0  # the shard that is being read comes first
        assert b"".join(reader.source(two).stream()) == DATA
        assert reader.counters.requests == 20
        assert reader.budget.peak <= 1 << 20
        assert reader.budget.held == 0


def test_the_first_part_of_a_stream_shares_the_wire_with_few(faulty: Any) -> None:
    shard = put(faulty)
    faulty.proxy.delay(0.3)
    with Reader(settings(faulty)) as reader:
        stream = reader.source(shard).stream()
        thread = threading.Thread(target=next, args=(stream,))
        thread.start()
        wait_for(lambda: reader.counters.requests == 2)
        time.sleep(0.1)
        assert reader.counters.requests == 2
        thread.join()
        wait_for(lambda: reader.counters.requests == 10)
        assert len(b"".join(stream)) == len(DATA) - 100 * KIB


def test_streams_share_the_budget_fairly(faulty: Any) -> None:
    one, two = put(faulty, "one.bin"), put(faulty, "two.bin")
    with Reader(settings(faulty, prefetch_bytes=400 * KIB)) as reader:
        first, second = reader.source(one).stream(), reader.source(two).stream()
        next(first)
        wait_for(lambda: reader.counters.requests == 4)
        next(second)  # its part is taken by force
        for _ in range(3):
            next(first)  # gives back what is more than its half
        next(second)
        held = {shard.url: sum(part.held for part in reader._parts if part.url == shard.url) for shard in (one, two)}
        assert held == {one.url: 200 * KIB, two.url: 200 * KIB}
        first.close()  # type: ignore[attr-defined]
        second.close()  # type: ignore[attr-defined]
        assert reader._streams == 0


# What is given


def test_long_reads_are_buffers_and_short_ones_bytes(s3: Any, local: Shard, reader: Reader) -> None:
    import numpy as np
    import pyarrow as pa

    with Reader(settings(s3)) as remote:
        for source in (remote.source(put(s3)), reader.source(local)):
            for start, stop in ((0, 90 * KIB), (5, 700 * KIB)):
                (long,) = source.read_many([(start, stop)])
                assert len(long) == stop - start
                assert long == DATA[start:stop]
                assert long[10:20] == DATA[start + 10 : start + 20]
                assert memoryview(long).readonly
                assert pa.py_buffer(long).address == np.frombuffer(long, np.uint8).ctypes.data
            assert isinstance(source.read(100, 60 * KIB), bytes)
            near, far = source.read_many([(0, 10), (200, 90 * KIB)])
            assert isinstance(near, bytes)
            assert far == DATA[200 : 90 * KIB]


def test_a_range_of_one_part_is_not_copied_even_after_a_refusal(faulty: Any) -> None:
    shard = put(faulty)
    faulty.proxy.add(Rule(status(503), times=2))
    with Reader(settings(faulty)) as reader:
        view = reader.source(shard).read(0, 100 * KIB)
        assert reader.counters.retries == 2
    assert isinstance(view, memoryview)
    assert type(view.obj).__module__ == "obstore"


# Errors


def test_a_removed_object_is_told_with_its_url(s3: Any, tmp_path: Path) -> None:
    shard = put(s3)
    s3.delete("data.bin")
    with Reader(settings(s3)) as reader:
        with pytest.raises(ShardChangedError, match=rf"{shard.url}: bytes 0-9: .*removed since it was listed"):
            reader.source(shard).read(0, 10)
        with pytest.raises(ShardChangedError, match="removed since it was listed"):
            reader.source(Shard(f"{tmp_path.as_uri()}/gone", 10)).read(0, 10)
        assert reader.counters.retries == 0


@pytest.mark.parametrize("change", [b"other" + DATA[5:], DATA[:-1], DATA + b"more"])
def test_an_object_overwritten_since_the_listing_is_an_error(s3: Any, change: bytes) -> None:
    shard = put(s3)
    s3.put("data.bin", change)
    with Reader(settings(s3)) as reader:
        with pytest.raises(ShardChangedError, match=r"data\.bin: .*overwritten since it was listed"):
            list(reader.source(shard).stream())
        assert reader.counters.retries == 0


def test_a_generation_replaced_since_the_listing_is_an_error(gcs: Any) -> None:
    shard = put(gcs)
    gcs.put("data.bin", b"other" + DATA[5:])
    with Reader(settings(gcs)) as reader, pytest.raises(ShardChangedError, match="since it was listed"):
        reader.source(shard).read(0, 10)


def test_a_file_cut_since_the_listing_is_an_error(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA[:-1])
    with pytest.raises(ShardChangedError, match="it has 1023999 bytes where 1024000 were listed"):
        reader.source(Shard(path.as_uri(), len(DATA))).read(0, len(DATA))


def test_wrong_credentials_are_told_and_stand_in_no_text(s3: Any, caplog: pytest.LogCaptureFixture) -> None:
    shard = put(s3)
    for change in ({"secret": "hushhush-secret"}, {"key": "hushhush-key"}):
        wrong = ReadSettings(storage_options={**s3.storage_options, **change}, retry=FAST)
        assert "hush" not in repr(wrong)
        with Reader(wrong) as reader:
            with pytest.raises((AccessError, CredentialsError), match=r"data\.bin") as caught:
                reader.source(shard).read(0, 10)
            assert "hush" not in str(caught.value) + repr(reader)
            assert caught.value.__cause__ is None
    assert "hush" not in caplog.text


def test_settings_are_picklable_and_refuse_what_is_not_positive() -> None:
    value = ReadSettings(storage_options={"key": "hush"}, prefetch_bytes=5)
    assert pickle.loads(pickle.dumps(value)) == value
    assert "hush" not in repr(value)
    for name in ("prefetch_bytes", "part_bytes", "concurrency", "stall_timeout"):
        with pytest.raises(ValueError, match=name):
            ReadSettings(**{name: 0})  # type: ignore[arg-type]


# The end


def test_closing_the_reader_wakes_who_waits(faulty: Any) -> None:
    shard = put(faulty)
    faulty.proxy.add(Rule(stall(60), times=None))
    reader, caught = Reader(settings(faulty, stall_timeout=60)), []

    def work() -> None:
        try:
            reader.source(shard).read(0, 10)
        except ReadError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: len(faulty.proxy.requests) == 1)
    began = time.monotonic()
    reader.close()
    thread.join(5)
    assert not thread.is_alive()
    assert time.monotonic() - began < 3
    assert "the reader was closed" in str(caught[0])
    reader.close()


def test_a_stream_closed_by_another_thread_ends_by_an_error_and_never_early(local: Shard) -> None:
    for _ in range(200):
        reader = Reader(ReadSettings(part_bytes=500 * KIB))
        closer = threading.Timer(random.uniform(0, 0.01), reader.close)
        closer.start()
        try:
            assert b"".join(reader.source(local).stream()) == DATA
            assert reader.source(local).read(0, len(DATA)) == DATA
        except ReadError as error:
            assert "closed" in str(error)  # noqa: PT017 - either outcome is right
        closer.join()
        assert reader.budget.held == 0


def test_a_closed_reader_reads_no_more(local: Shard) -> None:
    reader = Reader(ReadSettings(part_bytes=100 * KIB))
    stream = reader.source(local).stream()
    next(stream)
    reader.close()
    with pytest.raises(ReadError, match="closed"):
        list(stream)
    with pytest.raises(ReadError, match="closed"):
        reader.source(local).read(0, 1)
    reader.hint(local, 0, 10)
    assert reader.budget.held == 0


def test_ctrl_c_interrupts_a_read_at_once(faulty: Any) -> None:
    shard = put(faulty)
    faulty.proxy.add(Rule(stall(60), times=None))
    began = time.monotonic()
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with Reader(settings(faulty, stall_timeout=60)) as reader:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            reader.source(shard).read(0, 10)
    timer.join()
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("ending", "where"),
    [("", "main"), ("raise RuntimeError('mine')", "main"), ("reader.close(); list(stream)", "pool"), ("", "pool")],
)
def test_the_interpreter_ends_in_the_middle_of_reads(faulty: Any, ending: str, where: str) -> None:
    shard = put(faulty)
    faulty.proxy.add(Rule(stall(60), range="bytes=[2-9]", times=None))
    blocked = "" if where == "main" else "ThreadPoolExecutor().submit(lambda: source.read(300_000, 300_010))"
    program = f"""
        import time
        from concurrent.futures import ThreadPoolExecutor
        from streamio.storage.reader import Reader, ReadSettings
        from streamio.storage.shards import Shard
        reader = Reader(ReadSettings({faulty.storage_options!r}, part_bytes=100 << 10, stall_timeout=60))
        source = reader.source(Shard({shard.url!r}, {shard.size}, {shard.version!r}))
        stream = source.stream()
        next(stream)
        {blocked}
        time.sleep(0.3)
        print("reached")
        {ending}
    """
    began = time.monotonic()
    done = run(program, check=False)
    assert done.stdout == "reached\n", done.stderr
    assert time.monotonic() - began < 20
    assert done.returncode == (1 if ending else 0), done.stderr
    if ending.startswith("raise"):
        assert done.stderr.rstrip().endswith("RuntimeError: mine")


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def run(program: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter, with a deadline."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, check=check, timeout=60, capture_output=True, text=True)
