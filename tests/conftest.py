"""Fixtures for all tests: real servers, fresh buckets, a proxy that breaks things, a look for what is left.

A server that can't be started fails the tests that ask for it: nothing is ever skipped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.servers.buckets import Bucket, serve

if TYPE_CHECKING:
    from tests.servers.faults import FaultProxy

# Tests see neither the accounts of whoever runs them nor the metadata service of the machine.
for _name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "STORAGE_EMULATOR"))]:
    del os.environ[_name]
os.environ.update(
    AWS_EC2_METADATA_DISABLED="true",
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
    GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false",  # else gcsfs stalls for a minute before an emulator
)

settings.register_profile("default", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.register_profile(
    "slow", settings.get_profile("default"), max_examples=3000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("slow" if os.environ.get("STREAMIO_SLOW") == "1" else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow") or "slow" in config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Any]:
    """SeaweedFS, the S3 server of most tests: a `serve.Server`."""
    with serve.start("seaweedfs") as server:
        yield server


@pytest.fixture(scope="session")
def localstack_server() -> Iterator[Any]:
    """LocalStack, whose answers are the closest to AWS's: a `serve.Server`."""
    with serve.start("localstack") as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Any]:
    """fake-gcs-server, for gs://: a `serve.Server`."""
    with serve.start("gcs") as server:
        yield server


@pytest.fixture
def s3(s3_server: Any) -> Iterator[Bucket]:
    """A fresh bucket on SeaweedFS."""
    bucket = Bucket(s3_server)
    yield bucket
    bucket.drop()


@pytest.fixture
def localstack_s3(localstack_server: Any) -> Bucket:
    """A fresh bucket on LocalStack."""
    return Bucket(localstack_server)


@pytest.fixture
def gcs(gcs_server: Any) -> Bucket:
    """A fresh bucket on the GCS emulator."""
    return Bucket(gcs_server)


class FaultyBucket(Bucket):
    """A bucket whose options lead through `proxy`; `put`, `get` and `delete` go straight to the server."""

    def __init__(self, server: Any, proxy: FaultProxy) -> None:
        super().__init__(server, endpoint=proxy.endpoint)
        self.proxy = proxy


@pytest.fixture
def faulty(s3_server: Any) -> Iterator[FaultyBucket]:
    """A fresh bucket on SeaweedFS, reached through a FaultProxy (`faulty.proxy`)."""
    from tests.servers.faults import FaultProxy

    with FaultProxy(s3_server.endpoint) as proxy:
        bucket = FaultyBucket(s3_server, proxy)
        yield bucket
        bucket.drop()


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a child process or a non-daemon thread behind; allow each some time to end."""
    processes, threads = _children(), _threads()
    yield
    end = time.monotonic() + 5
    while (_children() - processes) | (_threads() - threads) and time.monotonic() < end:
        time.sleep(0.02)
    left_threads = _threads() - threads
    left_processes = _children() - processes
    told = [f"{child.pid} {_command(child)}" for child in left_processes]
    for child in left_processes:
        child.kill()  # our own; else it would disturb the tests that follow
    assert not told, f"processes left behind: {told}"
    assert not left_threads, f"threads left behind: {left_threads}"


# Kept on purpose until the end of the session: servers, and two helpers of multiprocessing.
KEPT = ("/keeper.py", "multiprocessing.resource_tracker import", "multiprocessing.forkserver import")


def _children() -> set[psutil.Process]:
    living = set()
    for child in psutil.Process().children():
        command = _command(child)
        if command and not any(name in command for name in KEPT):
            living.add(child)
    return living


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())  # empty for a zombie, which has ended
    except psutil.Error:
        return ""


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}
