"""What all ranks of a data set do together: send bytes to all, gather bytes from all, wait for all.

It has a gloo group of its own, whatever the trainer's backend, and a deadline on everything. It does not know
what the bytes mean, and is never used in a loader's worker.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from streamio.errors import GroupError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

    from streamio.topology import Topology


class Group:
    """The ranks of a topology, acting together: every call is made by all of them, in the same order.

    The gloo group behind it is made at the first call, and shared by all `Group`s of this process with the
    same peers. Without a process group, or with one peer, each call returns at once.

    Args:
        topology: From `resolve_topology`.
        timeout: Seconds that a call waits for the other ranks.
    """

    def __init__(self, topology: Topology, timeout: float = 600.0) -> None:
        self._topology = topology
        self._peers = topology.peers or ()
        self._timeout = timeout

    @property
    def alone(self) -> bool:
        """Whether there is nobody to act with: no process group, or no other rank in it."""
        return len(self._peers) < 2

    @property
    def leads(self) -> bool:
        """Whether this process is the first peer, which lists and writes for all; True where alone."""
        return self.alone or dist.get_rank() == self._peers[0]

    def broadcast(self, data: bytes | None, source: int | None = None, *, what: str = "broadcast") -> bytes:
        """Send bytes from one rank to all.

        Args:
            data: The bytes; looked at on the source alone. None there tells the others that it failed.
            source: Global rank of the sender; the first peer by default.
            what: What is being done, for messages; the same on all ranks.

        Returns:
            The source's bytes, on every rank.

        Raises:
            GroupError: Ranks did not come in time or do something else, or the source failed.
        """
        if self.alone:
            if data is None:
                raise GroupError(f"{what}: this rank failed and has nothing to send.")
            return data
        source = self._peers[0] if source is None else source
        if source not in self._peers:
            raise GroupError(f"{what}: rank {source} is none of the ranks {_listed(self._peers)}.")
        sends = dist.get_rank() == source
        call = self._meet(what, data if sends else b"")
        length = call.lengths[source]
        if length < 0:
            raise GroupError(f"{what}: rank {source} failed, and the others can't go on: see the error in its log.")
        tensor = _tensor(data if sends else b"", length)
        if length:
            call.run(dist.broadcast, tensor, source)
        return tensor.numpy().tobytes()

    def gather(self, data: bytes, *, what: str = "gather") -> list[bytes]:
        """Collect bytes from all ranks, on all ranks.

        Args:
            data: This rank's bytes, of any length.
            what: What is being done, for messages; the same on all ranks.

        Returns:
            One entry for each data-parallel rank, in their order; where several processes share a rank,
            that of the lowest global one. Alone: `[data]`.

        Raises:
            GroupError: Ranks did not come in time or do something else.
        """
        if self.alone:
            return [data]
        call = self._meet(what, data)
        longest = max(call.lengths.values())
        rows = [_tensor(b"", longest) for _ in call.lengths]
        if longest:
            call.run(dist.all_gather, rows, _tensor(data, longest))
        found: dict[int, bytes] = {}
        for (peer, length), row in zip(call.lengths.items(), rows, strict=True):
            found.setdefault(call.dp_ranks[peer], row[:length].numpy().tobytes())
        return [found[rank] for rank in sorted(found)]

    def barrier(self, what: str) -> None:
        """Wait until all ranks have come here.

        Args:
            what: What is being done, for messages; the same on all ranks.

        Raises:
            GroupError: Ranks did not come in time or do something else.
        """
        if not self.alone:
            self._meet(what, b"")

    def _meet(self, what: str, data: bytes | None) -> _Call:
        """Wait for all ranks, check that they mean the same, and learn the length of each one's data."""
        channel = _channel(what, self._peers)
        try:
            gloo = channel.meet(what, self._timeout)
        except RuntimeError as error:  # the store's own errors
            if isinstance(error, GroupError):
                raise
            raise GroupError(
                f"{what}: ranks can't reach each other ({_first_line(error)}). Rank 0 has probably died: "
                f"look for the first error in its log."
            ) from error
        topology = self._topology
        length = -1 if data is None else len(data)
        mine = torch.tensor([topology.rank, topology.world_size, length, zlib.crc32(what.encode())])
        rows = [torch.empty_like(mine) for _ in channel.ranks]
        call = _Call(what, channel.ranks, gloo)
        call.run(dist.all_gather, rows, mine)
        for peer, (dp_rank, world_size, length, meaning) in zip(
            channel.ranks, (row.tolist() for row in rows), strict=True
        ):
            if meaning != mine[3]:
                raise GroupError(
                    f"ranks do different things at one time: rank {dist.get_rank()} {what!r}, rank {peer} "
                    f"{channel.said(peer)!r}. All ranks must call these in the same order."
                )
            if world_size != topology.world_size:
                raise GroupError(
                    f"{what}: rank {peer} counts {world_size} data-parallel ranks, and rank "
                    f"{dist.get_rank()} {topology.world_size}: give all the same mesh, group or world_size."
                )
            call.lengths[peer] = length
            call.dp_ranks[peer] = dp_rank
        return call


@dataclass
class _Call:
    """One exchange over gloo, after all ranks have come to it."""

    what: str
    ranks: tuple[int, ...]
    gloo: ProcessGroup
    lengths: dict[int, int] = field(default_factory=dict)
    dp_ranks: dict[int, int] = field(default_factory=dict)

    def run(self, collective: Callable[..., Any], *args: Any) -> None:
        try:
            collective(*args, group=self.gloo)
        except RuntimeError as error:
            raise GroupError(
                f"{self.what}: the exchange between ranks {_listed(self.ranks)} broke off "
                f"({_first_line(error)}). One of them has probably died: its log has the error."
            ) from error


@dataclass
class _Channel:
    """The gloo group of some ranks, and the place in torch's store where each says that it has come.

    The store and not a barrier of gloo, as it tells every rank who is missing, also before gloo connects.
    """

    ranks: tuple[int, ...]  # ascending, the order of the gloo group
    world: ProcessGroup | None  # the default group that it was made under
    store: Store
    prefix: str
    calls: int = 0
    gloo: ProcessGroup | None = None

    def meet(self, what: str, timeout: float) -> ProcessGroup:
        self.calls += 1
        me, key, old = dist.get_rank(), self._key(self.calls), self._key(self.calls - 2)
        self.store.delete_key(f"{old}/{me}")
        self.store.set(f"{key}/{me}", what)
        last = self.store.add(f"{key}/came", 1) == len(self.ranks)
        if last and not self.store.check([f"{key}/verdict"]):
            self.store.set(f"{key}/verdict", "all")
            for name in ("came", "verdict"):  # nobody waits there any more
                self.store.delete_key(f"{old}/{name}")
        missing = self._wait(key, timeout)
        if missing:
            raise GroupError(
                f"{what}: rank {missing} did not come within {timeout:g} s (ranks {_listed(self.ranks)} are needed). "
                "All of them must make this call; look for the first error in the log of the missing."
            )
        if self.gloo is None:
            try:
                self.gloo = dist.new_group(
                    list(self.ranks),
                    timeout=timedelta(seconds=timeout),
                    backend="gloo",
                    use_local_synchronization=True,
                )
            except RuntimeError as error:
                raise GroupError(
                    f"{what}: ranks {_listed(self.ranks)} can't connect over gloo ({_first_line(error)}). "
                    f"Check that their hosts reach each other, and GLOO_SOCKET_IFNAME."
                ) from error
        return self.gloo

    def said(self, rank: int) -> str:
        """What another rank wants to do in this call."""
        return self.store.get(f"{self._key(self.calls)}/{rank}").decode()

    def _key(self, call: int) -> str:
        return f"{self.prefix}/{call}"

    def _wait(self, key: str, timeout: float) -> str:
        """Poll until all have come, or somebody's deadline has passed: the ranks that are missing, or ""."""
        deadline, pause = time.monotonic() + timeout, 0.002
        while not self.store.check([f"{key}/verdict"]):  # polls, as a blocking wait would ignore Ctrl-C
            if time.monotonic() > deadline:
                missing = [rank for rank in self.ranks if not self.store.check([f"{key}/{rank}"])]
                self.store.set(f"{key}/verdict", _listed(missing) or "all")
                break
            time.sleep(pause)
            pause = min(pause * 2, 0.5)
        verdict = self.store.get(f"{key}/verdict").decode()
        return "" if verdict == "all" else verdict


_channels: dict[tuple[int, tuple[int, ...]], _Channel] = {}
# Process groups end their threads when they are let go of. Left to the interpreter's own end, one of these may still
# have to free a tensor, for which it wants a lock that nobody gives any more: the process would abort.
atexit.register(_channels.clear)
_made: dict[tuple[int, ...], int] = {}


def _channel(what: str, peers: tuple[int, ...]) -> _Channel:
    """The channel of these peers; another one where `torch.distributed` was initialised anew."""
    from torch.distributed.distributed_c10d import _get_default_store

    if not dist.is_initialized():
        raise GroupError(f"{what}: torch.distributed has been shut down: do this before destroy_process_group().")
    ranks = tuple(sorted(peers))
    channel = _channels.get((os.getpid(), ranks))
    if channel is None or channel.world is not dist.group.WORLD:
        _made[ranks] = _made.get(ranks, 0) + 1
        name = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
        prefix = f"streamio/{name}/{_made[ranks]}"
        channel = _Channel(ranks, dist.group.WORLD, _get_default_store(), prefix)
        _channels[os.getpid(), ranks] = channel
    return channel


def _tensor(data: bytes | None, length: int) -> torch.Tensor:
    """`data` as uint8 of shape (length,), filled up with zeros."""
    return torch.frombuffer(bytearray(data or b"").ljust(length, b"\0") or bytearray(1), dtype=torch.uint8)[:length]


def _listed(ranks: Sequence[int], most: int = 16) -> str:
    """Ranks for a message: "0, 1, 2", cut short where there are many."""
    shown = ", ".join(map(str, ranks[:most]))
    return shown if len(ranks) <= most else f"{shown} and {len(ranks) - most} more"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
