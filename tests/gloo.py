"""Programs run by several gloo processes at once, each telling what it found; with a deadline on everything."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from pathlib import Path
from typing import Any

multiprocessing.set_forkserver_preload(["torch.distributed.device_mesh", "streamio"])
BEGIN = """
import os, time
from datetime import timedelta
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from streamio.errors import GroupError, TopologyError
from streamio.group import Group
from streamio.topology import Topology, resolve_topology

dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world,
                        timeout=timedelta(seconds=60))
def mesh(shape, names):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)
def numbers(topology):
    return [topology.rank, topology.world_size, list(topology.peers)]
def error(kind, call, *args, **options):
    try:
        call(*args, **options)
    except kind as caught:
        tell(str(caught))
    else:
        tell("no error")
"""


def run(program: str, rank: int, world: int, file: str, connection: Any) -> None:
    exec(BEGIN + program, {"rank": rank, "world": world, "file": file, "tell": connection.send})
    with contextlib.suppress(Exception):  # a rank that ends must not take its connections from one that begins
        import torch.distributed as dist

        dist.barrier()


def ranks(tmp_path: Path, world: int, program: str) -> list[list[Any]]:
    """Run a program on `world` gloo processes, with a deadline: what each told."""
    context = multiprocessing.get_context("forkserver")
    running, pipes = [], []
    for rank in range(world):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run, args=(program, rank, world, str(tmp_path / "store"), theirs))
        process.start()
        theirs.close()
        running.append(process)
        pipes.append(ours)
    end = time.monotonic() + 120
    told: list[list[Any]] = [[] for _ in running]
    try:
        for answers, pipe in zip(told, pipes, strict=True):
            with contextlib.suppress(EOFError):
                while pipe.poll(max(0.0, end - time.monotonic())):
                    answers.append(pipe.recv())
        for process in running:
            process.join(max(0.0, end - time.monotonic()))
        assert [process.exitcode for process in running] == [0] * world
    finally:
        for process, pipe in zip(running, pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()
    return told
