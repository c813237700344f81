"""Programs run as torchrun runs them, one process a rank: what each prints. Fast: torch is imported once for all."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import gloo

#: What every rank would import by itself, imported once in the process that all are forked from.
multiprocessing.set_forkserver_preload(
    [
        "torch.distributed.device_mesh",
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint._fsspec_filesystem",
        "torchdata.stateful_dataloader",
        "pytorch_lightning",
        "accelerate",
        "pyarrow.parquet",
        "s3fs",
        "obstore.store",
        "streamio.loader.dataloader",
        "streamio.loader.worker",
        "streamio.checkpoint",
        "streamio",
        gloo.__name__,
        __name__,
    ]
)
SECONDS = 100


def launched(program: str, world: int, folder: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """Run a program on ranks 0 to `world - 1`, with a deadline: what each printed.

    It finds what torchrun sets in the environment, and `folder` as its working directory.
    """
    context = multiprocessing.get_context("forkserver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running, pipes = [], []
    for rank in range(world):
        mine = {
            **(environment or {}),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "test",
            "OMP_NUM_THREADS": "1",
        }
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(program, str(folder), mine, theirs))
        process.start()
        theirs.close()
        running.append(process)
        pipes.append(ours)
    end = time.monotonic() + SECONDS
    try:
        printed = []
        for pipe in pipes:
            printed.append(pipe.recv() if pipe.poll(max(0.0, end - time.monotonic())) else "nothing, in time")
        for process in running:
            process.join(max(0.0, end - time.monotonic()))
        assert [process.exitcode for process in running] == [0] * world, "\n".join(printed)
        return printed
    finally:
        for process, pipe in zip(running, pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()


def _run(program: str, folder: str, environment: dict[str, str], connection: Any) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    path = Path(folder) / f"program-{environment['RANK']}.py"
    path.write_text(program)  # pickling and tracebacks want a file
    printed = io.StringIO()
    module = type(sys)("__main__")
    module.__dict__["__file__"] = str(path)
    sys.modules["__main__"] = module
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program, str(path), "exec"), module.__dict__)
    except BaseException as error:
        connection.send(f"{printed.getvalue()}{type(error).__name__}: {error}")
        raise
    connection.send(printed.getvalue())
