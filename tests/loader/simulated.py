"""A loader whose workers are objects in this process: the same plan, readers, schedule and state, without processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import streamio
from streamio.loader.mixed import work_of
from streamio.loader.mixed_spec import MixedSpec
from streamio.loader.server import Answer, Server
from streamio.loader.spec import Spec, Start


class SimulatedPool:
    def __init__(self, servers: list[Server]) -> None:
        self.workers = len(servers)
        self._servers = servers
        self._requests: list[deque[Sequence[int]]] = [deque() for _ in servers]

    def begin(self, start: Start) -> None:
        for server, requests in zip(self._servers, self._requests, strict=True):
            requests.clear()
            server.begin(start)

    def request(self, worker: int, tokens: Sequence[int]) -> None:
        self._requests[worker].append(tokens)

    def receive(self, worker: int) -> list[Answer]:
        return self._servers[worker].serve(self._requests[worker].popleft())

    def close(self) -> None:
        for server in self._servers:
            server.close()


class SimulatedLoader(streamio.DataLoader):
    def _new_pool(self, spec: Spec | MixedSpec) -> Any:
        workers = range(max(1, self.num_workers))
        return SimulatedPool([Server(work_of(spec), self._serving) for _ in workers])
