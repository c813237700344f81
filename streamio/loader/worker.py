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
from streamio.loader.server import Answer, Server
from streamio.loader.torch_private import set_worker_info

if TYPE_CHECKING:
    from streamio.loader.server import Work


@dataclass(frozen=True)
class WorkerArguments:
    """What every worker of a pool is started with.

    Attributes:
        work: What batches are made of.
        collate: The user's collate_fn.
        batched: Whether values are delivered in lists.
        dataset: What `get_worker_info().dataset` shows.
        seed: Base of the workers' global random states, as in torch's own loader.
        init: The user's worker_init_fn.
    """

    work: Work
    collate: Callable[[Any], Any] | None
    batched: bool
    dataset: Any
    seed: int
    init: Callable[[int], None] | None


def worker_main(arguments: WorkerArguments, worker_id: int, num_workers: int, sock: socket.socket) -> None:
    """Serve until the parent closes the socket or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with_parent, name="streamio-parent-watch", daemon=True).start()
    torch.set_num_threads(1)
    seed = arguments.seed + worker_id
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    set_worker_info(worker_id, num_workers, seed, arguments.dataset)

    server = Server(arguments.work, arguments.collate, batched=arguments.batched)
    outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sender = threading.Thread(target=_send_all, args=(sock, outbox), name="streamio-send", daemon=True)
    sender.start()
    failure = _initialised(arguments, worker_id)
    with contextlib.suppress(EOFError, OSError):  # the parent has closed its end
        while True:
            kind, iteration, what = receive(sock)
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


def _send_all(sock: socket.socket, outbox: queue.SimpleQueue[Any]) -> None:
    """Send answers while the next ones are being made."""
    with contextlib.suppress(OSError):  # the parent has closed its end
        while True:
            message = outbox.get()
            try:
                send(sock, message)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - a batch or an exception that can't be pickled
                iteration, answers = message
                send(sock, (iteration, [_unsendable(answers, error)]))


def _unsendable(answers: list[Answer], error: Exception) -> Answer:
    failure = answers[-1].failure
    if failure is not None and not _picklable(failure[0]):
        return Answer(failure=(WorkerError(f"{type(failure[0]).__name__}: {failure[0]}"), failure[1]))
    text = f"A batch can't be sent from a worker: it can't be pickled ({type(error).__name__}: {error})."
    return Answer(failure=(WorkerError(text), "".join(traceback.format_exception(error))))


def _picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - any failure means no
        return False
    return True


def _end_with_parent() -> None:
    """Never outlive the process that started us, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
