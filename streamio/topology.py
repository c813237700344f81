"""Which data-parallel rank this process is, of how many, and with whom it acts together, as plain integers.

It asks arguments, a mesh or process group, `torch.distributed` and the environment, and keeps none of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from streamio.errors import TopologyError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

DP_NAMES = frozenset(
    "dp dp_replicate dp_shard ddp fsdp hsdp data data_parallel replicate shard batch".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Topology:
    """This process's place among those that read the data.

    Attributes:
        rank: Data-parallel rank, 0 to `world_size - 1`. Several processes may have the same one (tensor-,
            context- and pipeline-parallel ranks): they get the same records.
        world_size: Number of data-parallel ranks.
        peers: Global ranks (of `torch.distributed`) that act together, this process's among them; None
            where there is no process group to do so.

    Raises:
        TopologyError: `rank` is not a rank of `world_size`.
    """

    rank: int = 0
    world_size: int = 1
    peers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise TopologyError(
                f"rank={self.rank} is not a rank of world_size={self.world_size}: give 0 to world_size - 1."
            )


def resolve_topology(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    device_mesh: DeviceMesh | None = None,
    dp_dims: str | Sequence[str] | None = None,
    process_group: ProcessGroup | None = None,
) -> Topology:
    """Find it from arguments, a mesh or group, `torch.distributed`, `RANK` and `WORLD_SIZE`, else one rank.

    Args:
        rank: Data-parallel rank; with `world_size`, and then without the others.
        world_size: Number of data-parallel ranks.
        device_mesh: A mesh with dimension names. The rank is the position over its data-parallel dimensions.
        dp_dims: Names of those dimensions, in any order; by default those named like one of `DP_NAMES`.
        process_group: The data-parallel group; None is `torch.distributed`'s own, if it is initialised.

    Raises:
        TopologyError: Arguments that do not go together, a mesh or group that this process is not in, a mesh
            without data-parallel names, or environment variables that are no ranks.
    """
    if (rank is None) != (world_size is None):
        raise TopologyError(f"rank={rank} and world_size={world_size}: give both, or neither.")
    if sum(source is not None for source in (rank, device_mesh, process_group)) > 1:
        raise TopologyError("rank and world_size, device_mesh and process_group say one thing in three ways: give one.")
    if dp_dims is not None and device_mesh is None:
        raise TopologyError("dp_dims names dimensions of a device_mesh: give the mesh too.")
    if rank is not None and world_size is not None:
        return _from_arguments(rank, world_size)
    if device_mesh is not None:
        return _from_mesh(device_mesh, dp_dims)
    if process_group is not None or _distributed():
        return _from_group(process_group)
    return _from_environment()


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _from_arguments(rank: int, world_size: int) -> Topology:
    # A rank and world that are torch.distributed's own mean all of its ranks. Others may be one process alone
    # (evaluation on rank 0): waiting for the rest would then be a hang.
    if _distributed() and (rank, world_size) == (dist.get_rank(), dist.get_world_size()):
        return Topology(rank, world_size, tuple(range(world_size)))
    return Topology(rank, world_size)


def _from_mesh(mesh: DeviceMesh, dp_dims: str | Sequence[str] | None) -> Topology:
    names = mesh.mesh_dim_names
    if not names:
        raise TopologyError("device_mesh has no dimension names: make it with mesh_dim_names=, or give process_group=.")
    if dp_dims is None:
        chosen = {name for name in names if name in DP_NAMES}
        if not chosen:
            raise TopologyError(
                f"none of the mesh's dimensions {', '.join(names)} has a data-parallel name that is known "
                f"({', '.join(sorted(DP_NAMES))}): name them by dp_dims=."
            )
    else:
        chosen = {dp_dims} if isinstance(dp_dims, str) else set(dp_dims)
        if not chosen or chosen - set(names):
            raise TopologyError(f"dp_dims={dp_dims!r}: the mesh's dimensions are {', '.join(names)}.")
    place = mesh.get_coordinate()
    if place is None:
        raise TopologyError(f"this process (global rank {dist.get_rank()}) is not in device_mesh.")
    rank, world_size = 0, 1
    for name, index, size in zip(names, place, mesh.mesh.shape, strict=True):
        if name in chosen:
            rank, world_size = rank * size + index, world_size * size
    return Topology(rank, world_size, tuple(mesh.mesh.flatten().tolist()))


def _from_group(group: ProcessGroup | None) -> Topology:
    rank = dist.get_rank(group)
    if rank < 0:
        raise TopologyError(f"this process (global rank {dist.get_rank()}) is not in process_group.")
    peers = dist.get_process_group_ranks(group) if group is not None else range(dist.get_world_size())
    return Topology(rank, dist.get_world_size(group), tuple(peers))


def _from_environment() -> Topology:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return Topology()
    try:
        return Topology(int(rank or ""), int(world_size or ""))
    except ValueError as error:
        raise TopologyError(
            f"RANK={rank} and WORLD_SIZE={world_size} in the environment do not go together ({error}): "
            f"set both as torchrun does, unset both, or give rank= and world_size=."
        ) from None
