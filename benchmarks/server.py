"""The object store of the benchmarks: SeaweedFS from localstack/serve.py, with data that outlive it.

A run starts one server, uses it for all cases and ends it; the shaper of the `cloud` profile stands before it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.place import Place

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".bench"
"""Default folder of the server's data and of results; git ignores it."""


def load_serve() -> ModuleType:
    """localstack/serve.py, by path: LocalStack's own package has the name of its folder."""
    if "serve" in sys.modules:
        return sys.modules["serve"]
    spec = importlib.util.spec_from_file_location("serve", ROOT / "localstack" / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["serve"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def place_of(server: Any, bucket: str) -> Place:
    """A bucket on a server of localstack/serve.py; it is made unless it exists."""
    server.make_bucket(bucket)
    options = server.storage_options
    return Place(server.endpoint, bucket, options["key"], options["secret"])


@contextlib.contextmanager
def running(home: Path, bucket: str) -> Iterator[Place]:
    """A server whose data lie in `home`/server, ended on the way out.

    Raises:
        RuntimeError: Another server has the data open: two would damage them, and disturb each other's figures.
    """
    folder = home / "server"
    folder.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(f"another benchmark uses {home}: wait for it, or give another --home") from None
        with load_serve().start("seaweedfs", directory=folder) as server:
            yield place_of(server, bucket)


@contextlib.contextmanager
def shaped(place: Place, profile: str) -> Iterator[Place]:
    """The place as it is (`loopback`), or behind the shaper in a process of its own (`cloud`)."""
    if profile == "loopback":
        yield place
        return
    command = [sys.executable, "-m", "benchmarks.shaper", place.endpoint]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            yield replace(place, endpoint=f"http://127.0.0.1:{ports['port']}", control=ports["control"])
        finally:
            process.terminate()


def wire_counters(place: Place) -> dict[str, int] | None:
    """What the shaper has counted so far: requests, bytes, connections; None without one."""
    if place.control is None:
        return None
    with (
        socket.create_connection(("127.0.0.1", place.control), timeout=10) as connection,
        connection.makefile() as file,
    ):
        return dict(json.loads(file.readline()))
