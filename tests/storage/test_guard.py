"""obstore and fork: what works, what is refused, and that nothing hangs. Each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest

from streamio.storage.shards import Shard

DATA = bytes(range(256)) * 1000

PROGRAM = """
import multiprocessing, os, sys
from streamio.errors import WorkerError
from streamio.storage.guard import obstore_used
from streamio.storage.reader import Reader, ReadSettings
from streamio.storage.shards import Shard

shard = Shard({url!r}, {size}, {version!r})
settings = ReadSettings({options!r}, part_bytes=50_000)


def read(engine="auto"):
    from dataclasses import replace
    with Reader(replace(settings, engine=engine)) as reader:
        return len(b"".join(reader.source(shard).stream()))


def in_child(fn):
    '''What a forked child's function returns, or the exception that it raises, as text.'''
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = repr(fn())
        except BaseException as error:
            answer = f"{{type(error).__name__}}: {{error}}"
        os.write(there, answer.encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(here) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


if __name__ == "__main__":
"""


def run(bucket: Any, body: str) -> list[str]:
    """Lines that the program prints; it fails after a deadline."""
    shard = Shard(bucket.put("data.bin", DATA), len(DATA), bucket.etag("data.bin").strip('"'))
    head = PROGRAM.format(url=shard.url, size=shard.size, version=shard.version, options=bucket.storage_options)
    command = [sys.executable, "-c", head + textwrap.indent(textwrap.dedent(body), "    ")]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_children_forked_before_any_read_may_read_through_obstore(s3: Any) -> None:
    lines = run(
        s3,
        """
        print(obstore_used())
        print(*[in_child(lambda: (read(), obstore_used())) for _ in range(3)], sep="\\n")
        print(obstore_used(), read(), obstore_used())
        """,
    )
    assert lines == ["False", *["(256000, True)"] * 3, "False 256000 True"]


def test_a_child_forked_after_a_read_is_refused_at_once_with_the_remedy(s3: Any) -> None:
    lines = run(
        s3,
        """
        read()
        print(in_child(read))
        print(in_child(lambda: in_child(read)))
        print(in_child(lambda: (obstore_used(), read("fsspec"))))
        print(read())
        """,
    )
    for line in lines[:2]:
        assert "WorkerError" in line
        assert "s3://" in line
        assert "multiprocessing_context=" in line
        assert "forkserver" in line
    assert lines[2:] == ["(True, 256000)", "256000"]


def test_a_parent_that_reads_through_fsspec_may_fork_readers(s3: Any) -> None:
    lines = run(
        s3,
        """
        print(read("fsspec"), obstore_used(), in_child(read), in_child(lambda: read("fsspec")), read("fsspec"))
        """,
    )
    assert lines == ["256000 False 256000 256000 256000"]


def test_a_child_forked_in_the_middle_of_a_read_reads_by_a_reader_of_its_own(s3: Any) -> None:
    lines = run(
        s3,
        """
        from dataclasses import replace
        reader = Reader(replace(settings, engine="fsspec"))
        source = reader.source(shard)
        stream = source.stream()
        got = len(next(stream))
        print(in_child(lambda: source.read(0, 10)))
        print(in_child(read))
        print(got + sum(map(len, stream)))
        """,
    )
    assert "ReadError" in lines[0]
    assert "was made in process" in lines[0]
    assert lines[1:] == ["256000", "256000"]


def test_obstore_used_by_another_library_is_noticed(s3: Any) -> None:
    lines = run(
        s3,
        """
        import obstore
        from obstore.store import S3Store
        options = settings.storage_options
        store = S3Store(
            shard.url.split("/")[2], endpoint=options["endpoint_url"], region="us-east-1",
            access_key_id=options["key"], secret_access_key=options["secret"], client_options={"allow_http": True},
        )
        print(obstore_used())
        obstore.get(store, "data.bin").bytes()
        print(obstore_used())
        print(in_child(read)[:11])
        """,
    )
    assert lines == ["False", "True", "WorkerError"]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_started_processes_read_whatever_their_parent_did(s3: Any, tmp_path: Any, method: str) -> None:
    module = tmp_path / "child_of_test.py"
    module.write_text(
        textwrap.dedent(
            """
            from streamio.storage.reader import Reader

            def read(settings, shard, queue):
                with Reader(settings) as reader:
                    queue.put(len(b"".join(reader.source(shard).stream())))
            """
        )
    )
    lines = run(
        s3,
        f"""
        sys.path.insert(0, {str(tmp_path)!r})
        os.environ["PYTHONPATH"] = {str(tmp_path)!r}
        import child_of_test
        print(read())
        context = multiprocessing.get_context({method!r})
        queue = context.SimpleQueue()
        process = context.Process(target=child_of_test.read, args=(settings, shard, queue))
        process.start()
        process.join(45)
        print(process.exitcode, queue.get())
        """,
    )
    assert lines == ["256000", "0 256000"]
