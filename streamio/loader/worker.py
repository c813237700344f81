"""The life of one worker process: take requests, make batches, send them, and end when the parent does."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import random
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from streamio.errors import WorkerError
from streamio.loader.channel import receive, send
from streamio.loader.segments import Segments
from streamio.loader.server import Answer, Server, Serving
from streamio.loader.torch_private import set_worker_info

if TYPE_CHECKING:
    from streamio.loader.server import Work


@dataclass(frozen=True)
class WorkerArguments:
    """What every worker of a pool is started with.

    Attributes:
        work: What batches are made of.
        serving: What is made of it.
        dataset: What `get_worker_info().dataset` shows.
        seed: Base of the workers' global random states, as in torch's own loader.
        init: The user's worker_init_fn.
    """

    work: Work
    serving: Serving
    dataset: Any
    seed: int
    init: Callable[[int], None] | None


def worker_main(arguments: WorkerArguments, worker_id: int, num_workers: int, sock: socket.socket) -> None:
    """Serve until the parent closes the socket or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a trainer's handler is not ours to run
    threading.Thread(target=_end_with_parent, name="streamio-parent-watch", daemon=True).start()
    torch.set_num_threads(1)
    seed = arguments.seed + worker_id
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    set_worker_info(worker_id, num_workers, seed, arguments.dataset)

    server = Server(arguments.work, arguments.serving)
    outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # Records one by one would use up the file descriptors that torch shares tensors by: these go by value.
    segments = Segments()
    arguments_of_sender = (sock, outbox, segments, not arguments.serving.batched)
    sender = threading.Thread(target=_send_all, args=arguments_of_sender, name="streamio-send", daemon=True)
    sender.start()
    failure = _initialised(arguments, worker_id)
    with contextlib.suppress(EOFError, OSError):  # the parent has closed its end
        while True:
            kind, iteration, what, let_go = receive(sock)
            segments.give_back(let_go)
            if kind == "begin":
                failure = failure or _begun(server, what)
            else:
                outbox.put((iteration, [Answer(failure=failure)] if failure else server.serve(what)))
    server.close()


def _initialised(arguments: WorkerArguments, worker_id: int) -> tuple[BaseException, str] | None:
    try:
        if arguments.init is not None:
            arguments.init(worker_id)
    except Exception as error:  # noqa: BLE001 - carried to the consumer
        return error, traceback.format_exc()
    return None


def _begun(server: Server, start: Any) -> tuple[BaseException, str] | None:
    try:
        server.begin(start)
    except Exception as error:  # noqa: BLE001 - carried to the consumer
        return error, traceback.format_exc()
    return None


def _send_all(sock: socket.socket, outbox: queue.SimpleQueue[Any], segments: Segments, by_value: bool) -> None:
    """Send answers while the next ones are being made."""
    with contextlib.suppress(OSError):  # the parent has closed its end
        while True:
            iteration, answers = outbox.get()
            failure = answers[-1].failure
            if failure is not None and not _survives(failure[0]):
                told = WorkerError(f"{type(failure[0]).__name__}: {failure[0]}")
                answers[-1] = Answer(failure=(told, failure[1]))
            try:
                send(sock, (iteration, answers), segments, by_value=by_value)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - a batch that can't be pickled
                send(sock, (iteration, [_unsendable(error)]))


def _unsendable(error: Exception) -> Answer:
    text = f"A batch can't be sent from a worker: it can't be pickled ({type(error).__name__}: {error})."
    return Answer(failure=(WorkerError(text), "".join(traceback.format_exception(error))))


def _survives(error: BaseException) -> bool:
    """Whether an exception comes out of a pickle as what it was."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - any failure means no
        return False


def _end_with_parent() -> None:
    """Never outlive the process that started us, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
