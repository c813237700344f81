"""localstack/serve.py: each kind of server starts, serves, stays on loopback and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.servers.buckets import Bucket, serve

SERVE = Path(serve.__file__)
KINDS = list(serve.KINDS)


def _gone(pid: int, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_takes_an_object_and_gives_it_back(kind: str) -> None:
    data = os.urandom(100_000)
    with serve.start(kind) as server:
        bucket = Bucket(server)
        url = bucket.put("a/b c+d%é~.bin", data)
        assert bucket.get("a/b c+d%é~.bin") == data
        fs = bucket.fs()
        assert fs.cat(url) == data
        assert [f"{server.scheme}://{path}" for path in fs.find(bucket.url)] == [url]
        bucket.delete("a/b c+d%é~.bin")
        with pytest.raises(FileNotFoundError):
            bucket.get("a/b c+d%é~.bin")


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_listens_on_loopback_alone_and_leaves_nothing(kind: str) -> None:
    server = serve.start(kind)
    try:
        pid, scratch = server.pid, server._scratch
        time.sleep(1)  # SeaweedFS opens its admin port some time after it answers
        seen = [
            connection.laddr
            for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert server.port in {address.port for address in seen}
        assert {address.ip for address in seen} == {"127.0.0.1"}
        assert {(address.ip, address.port) for address in seen} <= set(server.listeners())
    finally:
        server.stop()
    assert _gone(pid)
    assert not server.alive
    assert not scratch.exists()
    ports = {address.port for address in seen}
    assert not [path for path in Path("/tmp").glob("seaweedfs-*.sock") if int(path.stem.split("-")[-1]) in ports]
    server.stop()  # a second time is no error


def test_a_bucket_may_be_made_twice(s3_server: Any, gcs_server: Any, localstack_server: Any) -> None:
    for server in (s3_server, gcs_server, localstack_server):
        assert server.make_bucket("made-twice") == server.make_bucket("made-twice")


def test_a_refused_bucket_name_is_told(s3_server: Any) -> None:
    with pytest.raises(serve.ServerError, match="did not make bucket 'NO'"):
        s3_server.make_bucket("NO")


def test_seaweedfs_has_room_for_many_buckets(s3_server: Any) -> None:
    buckets = [Bucket(s3_server) for _ in range(100)]
    with ThreadPoolExecutor(20) as pool:
        assert len(list(pool.map(lambda bucket: bucket.put("key", b"x"), buckets))) == 100
        list(pool.map(lambda bucket: bucket.drop(), buckets))


def test_a_wrong_secret_is_refused_by_seaweedfs(s3: Bucket) -> None:
    import fsspec

    url = s3.put("x", b"1")
    fs = fsspec.filesystem("s3", **{**s3.storage_options, "secret": "wrong"}, skip_instance_cache=True)
    with pytest.raises(PermissionError):
        fs.cat(url)


def test_a_write_into_a_bucket_that_is_not_there_fails(s3_server: Any) -> None:
    assert s3_server.request("PUT", "/no-such-bucket/key", b"x").status == 404


def test_the_environment_variables_lead_a_child_process_to_the_server(s3: Bucket, gcs: Bucket) -> None:
    for bucket in (s3, gcs):
        url = bucket.put("k", b"from the child")
        options = {"token": "anon"} if bucket.server.scheme == "gs" else {}
        code = f"import fsspec; print(fsspec.open({url!r}, **{options}).open().read().decode())"
        environment = {**os.environ, **bucket.env}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == "from the child", done.stderr


def test_data_in_a_given_directory_outlives_the_server(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    with serve.start(directory=tmp_path) as server:
        bucket = Bucket(server)
        bucket.put("kept/small", b"x")
        bucket.put("kept/large", data)
    with serve.start(directory=tmp_path) as server:
        bucket.server = server
        assert bucket.get("kept/small") == b"x"
        assert bucket.get("kept/large") == data
        bucket.put("kept/new", b"y")
        assert bucket.get("kept/new") == b"y"


def test_a_directory_for_a_server_that_keeps_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keeps its data in memory"):
        serve.start("gcs", directory=tmp_path)


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="choose from seaweedfs, localstack"):
        serve.start("minio")


@pytest.mark.parametrize("kind", KINDS)
def test_a_taken_port_is_told(kind: str, gcs_server: Any) -> None:
    with pytest.raises(serve.PortTakenError, match=r"in use|not available"):
        serve.start(kind, port=gcs_server.port, deadline=20)
    assert gcs_server.request("GET", "/_internal/healthcheck").status == 200


def test_a_random_port_that_was_taken_meanwhile_is_replaced(gcs_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free_ports, taken = serve.free_ports, [[gcs_server.port]]
    monkeypatch.setattr(serve, "free_ports", lambda count: taken.pop() if taken else free_ports(count))
    with serve.start("gcs") as server:
        assert not taken
        assert server.port != gcs_server.port


def test_a_server_that_does_not_answer_in_time_shows_its_log() -> None:
    with pytest.raises(serve.ServerError, match=r"no answer within 0 s:\n"):
        serve.start("localstack", deadline=0.01)


def test_a_server_dies_with_a_process_that_is_killed() -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {str(SERVE.parent)!r}); import serve; server = serve.start();"
        "print(server.pid, server._scratch, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, scratch = parent.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        parent.kill()
    assert _gone(int(pid))
    end = time.monotonic() + 10
    while Path(scratch).exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(scratch).exists()


def test_a_server_dies_with_its_keeper() -> None:
    with serve.start() as server:
        pid = server.pid
        os.kill(server._keeper.pid, signal.SIGKILL)
        assert _gone(pid)
        assert server._keeper.wait() != 0


def test_a_server_outlives_the_thread_that_started_it() -> None:
    servers: list[Any] = []
    thread = threading.Thread(target=lambda: servers.append(serve.start()))
    thread.start()
    thread.join()
    with servers[0] as server:
        time.sleep(1)
        assert server.request("GET", "/healthz").status == 200


def test_a_forked_child_that_ends_leaves_the_server_alone(s3_server: Any) -> None:
    child = os.fork()
    if child == 0:
        s3_server.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert s3_server.request("GET", "/healthz").status == 200


def test_processes_that_find_an_environment_half_made_make_it_anew_once(tmp_path: Path) -> None:
    folder = tmp_path / f"gcs-{serve.KINDS['gcs'].version}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("torn")
    # The real thing but for what is installed: pip itself, which is there without a download.
    code = (
        f"import dataclasses, sys; sys.path.insert(0, {str(SERVE.parent)!r}); import kinds;"
        "kinds.KINDS['gcs'] = dataclasses.replace(kinds.KINDS['gcs'], requirements=('pip',));"
        "folder = kinds.prepare('gcs'); print(folder, (folder / 'made-of').stat().st_mtime_ns)"
    )
    environment = {**os.environ, "STREAMIO_SERVERS_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    asked = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate()[0] for process in asked}
    assert answers == {f"{folder} {(folder / 'made-of').stat().st_mtime_ns}\n"}
    assert subprocess.run([folder / "bin" / "python", "-m", "pip", "--version"], capture_output=True).returncode == 0


def test_preparing_tells_the_folder_and_starts_nothing() -> None:
    done = subprocess.run([sys.executable, str(SERVE), "--prepare", "gcs"], capture_output=True, text=True)
    assert done.stdout == f"gcs: {serve.prepare('gcs')}\n"


def test_what_can_not_be_installed_is_told_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMIO_SERVERS_HOME", str(tmp_path))
    absent = dataclasses.replace(serve.KINDS["gcs"], requirements=("./no-such-package",))
    monkeypatch.setitem(serve.KINDS, "gcs", absent)
    with pytest.raises(serve.ServerError, match=r"could not be installed:\n(?s:.*)no-such-package"):
        serve.start("gcs")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_command_makes_buckets_tells_where_and_ends_cleanly(ending: signal.Signals) -> None:
    command = [sys.executable, str(SERVE), "gcs", "--bucket", "one", "--bucket", "two", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"{told['endpoint']}/storage/v1/b?project=test", timeout=10) as answer:
            assert {item["name"] for item in json.load(answer)["items"]} == {"one", "two"}
        process.send_signal(ending)
        _, complaint = process.communicate(timeout=20)
    assert (process.returncode, complaint) == (0, "")
    assert told["buckets"] == ["gs://one", "gs://two"]
    assert told["storage_options"]["endpoint_url"] == told["endpoint"] == told["env"]["STORAGE_EMULATOR_HOST"]
    assert _gone(told["pid"])


def test_the_command_prints_exports_that_a_shell_takes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, str(SERVE)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(8)]
        process.terminate()
    script = "".join(lines) + "echo $AWS_ACCESS_KEY_ID $AWS_ENDPOINT_URL"
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True)
    assert done.stdout.startswith("streamio http://127.0.0.1:"), (done, lines)


def test_the_command_tells_what_it_refuses_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SERVE), "moto", "--dir", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "serve.py: moto keeps its data in memory only: a directory is for seaweedfs\n"
