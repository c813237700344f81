from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

import streamio
from streamio.errors import FormatError, GroupError, WorkerError
from streamio.formats import registry
from streamio.formats.base import Block, Source
from streamio.index import share
from streamio.index.build import build_index
from tests.gloo import ranks
from tests.loader.data import write_lines, write_parquet, write_tar

SIZES = (20, 13, 0, 30)


def index_of(folder: Path) -> Any:
    return pq.read_table(folder / "_streamio" / "index.parquet")


@contextmanager
def served(data: bytes) -> Iterator[str]:
    """The URL of an HTTP server that has these bytes at every path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first, last = 0, len(data) - 1
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if match:
                first, last = int(match[1]), min(last, int(match[2] or last))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[first : last + 1])

        do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_it_lies_beside_the_data_with_a_row_for_each_shard(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    built = build_index(tmp_path, workers=1)
    assert (built.shards, built.read, built.kept, built.records, built.failed) == (4, 4, 0, 63, 0)
    assert built.url == f"file://{tmp_path}/_streamio/index.parquet"
    rows = index_of(tmp_path).to_pylist()
    assert [(row["url"], row["records"], row["format"]) for row in rows] == [
        (f"p{number:03}.jsonl", size, "jsonl") for number, size in enumerate(SIZES)
    ]
    assert [path.name for path in (tmp_path / "_streamio").iterdir()] == ["index.parquet"]


def test_processes_make_the_same_index_as_one(tmp_path: Path) -> None:
    write_tar(tmp_path, (5, 9, 2, 7, 3))
    one = build_index(tmp_path, tmp_path / "_one" / "index.parquet", workers=1)
    two = build_index(tmp_path, tmp_path / "_two" / "index.parquet", workers=2)
    assert one.records == two.records == 26
    first, second = ((tmp_path / name / "index.parquet").read_bytes() for name in ("_one", "_two"))
    assert first == second


def test_only_new_and_changed_shards_are_read_again(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    build_index(tmp_path, workers=1)
    again = build_index(tmp_path, workers=1)
    assert (again.read, again.kept, again.records) == (0, 4, 63)
    (tmp_path / "p001.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "p004.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    more = build_index(tmp_path, workers=1)
    assert (more.shards, more.read, more.kept, more.records) == (5, 2, 3, 53)


def test_other_options_read_all_again(tmp_path: Path) -> None:
    write_parquet(tmp_path, (9, 9))
    assert build_index(tmp_path).read == 2
    assert build_index(tmp_path, columns=["id"]).read == 2
    assert build_index(tmp_path, columns=["id"]).read == 0


def test_entries_of_other_shards_stay(tmp_path: Path) -> None:
    write_lines(tmp_path, SIZES)
    write_parquet(tmp_path, (8,))
    build_index(str(tmp_path / "*.jsonl"), workers=1)
    build_index(str(tmp_path / "*.parquet"))
    assert index_of(tmp_path)["records"].to_pylist() == [20, 8, 13, 0, 30]
    assert build_index(str(tmp_path / "*.jsonl"), workers=1).read == 0


def test_what_others_put_into_the_index_meanwhile_stays(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name, [5, 3])
    out = tmp_path / "index.parquet"

    def meanwhile(done: int, shards: int, nbytes: int) -> None:
        if done == 1:
            build_index(tmp_path / "b", out, workers=1)

    build_index(tmp_path / "a", out, workers=1, progress=meanwhile)
    for name in "ab":
        assert len(streamio.DataLoader(streamio.StreamingDataset(tmp_path / name, index=out))) == 8


def test_what_was_read_before_a_failure_is_taken_up(tmp_path: Path) -> None:
    write_lines(tmp_path, (5, 5, 5))
    (tmp_path / "q.json").write_text("[1]")  # the smallest is read last
    with pytest.raises(FormatError, match="one JSON array"):
        build_index(tmp_path, workers=1)
    assert [path.name.rpartition("-")[0] for path in (tmp_path / "_streamio").iterdir()] == ["index.parquet.part"]
    with pytest.raises(TypeError, match="no len"):  # parts are no index
        len(streamio.DataLoader(streamio.StreamingDataset(str(tmp_path / "*.jsonl"))))
    (tmp_path / "q.json").write_text('{"id": 1}\n')
    built = build_index(tmp_path, workers=1)
    assert (built.read, built.kept, built.records) == (1, 3, 16)
    assert [path.name for path in (tmp_path / "_streamio").iterdir()] == ["index.parquet"]


def test_parts_are_written_as_the_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "PART_SECONDS", 0.0)
    write_lines(tmp_path, (5, 5, 5))
    seen: list[int] = []

    def look(done: int, shards: int, nbytes: int) -> None:
        folder = tmp_path / "_streamio"
        seen.append(len(list(folder.iterdir())) if folder.exists() else 0)

    build_index(tmp_path, workers=1, progress=look)
    assert seen == [0, 1, 2]
    assert [path.name for path in (tmp_path / "_streamio").iterdir()] == ["index.parquet"]


def test_a_damaged_index_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(tmp_path, (5, 5))
    build_index(tmp_path, workers=1)
    (tmp_path / "_streamio" / "index.parquet").write_bytes(b"torn")
    assert build_index(tmp_path, workers=1).read == 2
    assert "All is read anew" in caplog.text


def test_damaged_shards_are_counted_and_named(tmp_path: Path) -> None:
    write_tar(tmp_path, (6, 6, 6))
    whole = (tmp_path / "p001.tar").read_bytes()
    (tmp_path / "p001.tar").write_bytes(whole[:3000])
    built = build_index(tmp_path, workers=1)
    # A sample that is surely whole, and a slot for what is lost.
    assert (built.failed, built.records) == (1, 6 + 2 + 6)
    ((url, error),) = built.damaged
    assert url == f"file://{tmp_path}/p001.tar"
    assert "cut short" in error
    again = build_index(tmp_path, workers=1)  # known by now
    assert (again.read, again.damaged) == (0, built.damaged)
    assert again.to_json()["damaged"] == [{"url": url, "error": error}]


def test_damaged_shards_are_named_without_what_is_secret(tmp_path: Path) -> None:
    with served(b"x" * 600) as url:
        built = build_index(f"{url}/q.tar?token=verborgen", tmp_path / "q.index", workers=1)
    assert [each for each, _ in built.damaged] == [f"{url}/q.tar?token=***"]
    assert "verborgen" not in json.dumps(built.to_json())


def test_an_index_may_lie_elsewhere_but_not_among_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, (5, 5))
    out = tmp_path / "lines.index"
    assert build_index(data, out, workers=1).url == f"file://{out}"
    assert pq.read_table(out)["url"].to_pylist() == ["data/p000.jsonl", "data/p001.jsonl"]
    with pytest.raises(ValueError, match="among the data"):
        build_index(data, data / "index.parquet", workers=1)
    with pytest.raises(ValueError, match="no common folder"):
        build_index(f"zip://*.jsonl::{shutil.make_archive(str(tmp_path / 'z'), 'zip', data)}", workers=1)


def test_what_can_not_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="workers=0"):
        build_index(tmp_path, workers=0)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(GroupError, match="2 ranks together"):
        build_index(tmp_path)


@dataclass(frozen=True)
class Dying:
    """Ends its process at the shard that says so."""

    name = "dying"
    suffixes = (".dying",)

    def cuttable(self, url: str) -> bool:
        return False

    def blocks(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Iterator[Block]:
        if bytes(source.read(0, 1)) == b"x":
            os._exit(9)
        yield from ()


def test_a_process_that_dies_is_an_error_that_says_so(tmp_path: Path) -> None:
    for number, text in enumerate("aaax"):
        (tmp_path / f"{number}.dying").write_text(text)
    registry.register(Dying)
    try:
        with pytest.raises(WorkerError, match="has died"):
            build_index(tmp_path, workers=2)
    finally:
        registry._registry.cache_clear()


def test_ranks_share_the_work(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, (20, 13, 30, 4, 9))
    (data / "q.jsonl.gz").write_bytes(b"x" * 30)
    program = f"""
import logging
from streamio.index import share
from streamio.index.build import build_index
mine = []
built = build_index({str(data)!r}, workers=1, progress=lambda done, shards, nbytes: mine.append((done, shards)))
tell(built.to_json())
tell(mine)
"""
    (first, mine), (second, others) = ranks(tmp_path, 2, program)
    assert first == second
    assert (first["shards"], first["read"], first["records"], first["failed"]) == (6, 6, 77, 1)
    assert [each["url"] for each in first["damaged"]] == [f"file://{data}/q.jsonl.gz"]
    assert mine == others == [(1, 3), (2, 3), (3, 3)]
    assert index_of(data)["records"].to_pylist() == [20, 13, 30, 4, 9, 1]


def test_an_error_of_one_rank_is_an_error_of_all(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, (20, 13))
    (data / "q.json").write_text("[1]")
    program = f"""
from streamio.errors import FormatError
from streamio.index.build import build_index
error(FormatError, build_index, {str(data)!r}, workers=1)
"""
    (first,), (second,) = ranks(tmp_path, 2, program)
    assert "one JSON array" in first
    assert first == second


def test_an_index_on_an_s3_server_is_one_object(s3: Any) -> None:
    for number in range(3):
        s3.put(f"data/p{number}.jsonl", b"".join(b'{"id": %d}\n' % i for i in range(number + 1)))
    built = build_index(f"{s3.url}/data", storage_options=s3.storage_options, workers=2)
    assert (built.records, built.read) == (6, 3)
    data = s3.get("data/_streamio/index.parquet")
    assert s3.storage_options["secret"].encode() not in data
    assert build_index(f"{s3.url}/data", storage_options=s3.storage_options).read == 0
    assert json.dumps(built.to_json())


def test_a_build_that_is_killed_leaves_no_process_and_is_taken_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, [5] * 40)
    program = tmp_path / "main.py"
    program.write_text(f"""
import os
if __name__ == "__main__":
    import psutil
    from streamio.index import share
    from streamio.index.build import build_index
    share.PART_SECONDS = 0.0
    def die(done, shards, nbytes):
        if done == shards:  # its processes wait for more
            print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
            os.kill(os.getpid(), 9)
    build_index({str(data)!r}, workers=2, progress=die)
""")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    children = [int(pid) for pid in done.stdout.split()]
    assert len(children) >= 3
    end = time.monotonic() + 20
    while (left := [pid for pid in children if psutil.pid_exists(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left
    built = build_index(data, workers=1)
    assert (built.kept, built.read, built.records) == (39, 1, 200)
