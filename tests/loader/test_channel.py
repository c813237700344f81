"""Messages between a worker and the loader: whatever is sent comes out the same, and shared memory is used again."""

from __future__ import annotations

import gc
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from streamio.loader.channel import Inbox, receive, send
from streamio.loader.segments import AVAILABLE, MOST, Segments


class Ends:
    """A worker's and a loader's end of one channel, in one process."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.inbox = Inbox(self.ours)
        self.segments = Segments()

    def through(self, message: Any, *, by_value: bool = False) -> Any:
        """The message as the loader gets it; nobody reads meanwhile, so it is small or goes through shared memory."""
        self.segments.give_back(self.inbox.let_go())
        send(self.theirs, message, self.segments, by_value=by_value)
        self.inbox.read()
        return self.inbox.take()

    def close(self) -> None:
        self.inbox.close()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def ends() -> Any:
    made = Ends()
    yield made
    made.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def big_batch(rows: int = 100) -> pa.RecordBatch:
    return pa.record_batch({"id": range(rows), "data": [bytes([i % 256]) * 10_000 for i in range(rows)]})


@pytest.mark.parametrize("rows", [1, 100])
def test_a_record_batch_comes_out_equal_small_or_large(ends: Ends, rows: int) -> None:
    assert ends.through({"batch": big_batch(rows), "n": 1}) == {"batch": big_batch(rows), "n": 1}


def test_a_slice_of_a_batch_sends_no_more_than_the_slice(ends: Ends) -> None:
    part = big_batch(1000).slice(500, 2)
    assert ends.through(part) == part
    assert not ends.segments._maps  # it was small enough for the socket


@pytest.mark.parametrize(
    "array",
    [
        np.arange(100_000, dtype=np.float32).reshape(100, 1000),
        np.asfortranarray(np.arange(100_000).reshape(100, 1000)),
        np.arange(200_000)[::2],
        np.array(["a", None, 3], dtype=object),
        np.zeros((0, 3)),
    ],
)
def test_numpy_arrays_of_any_layout_come_out_equal(ends: Ends, array: np.ndarray[Any, Any]) -> None:
    got = ends.through([array])[0]
    assert got.dtype == array.dtype
    assert np.array_equal(got, array)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(100_000).reshape(10, -1),
        torch.arange(6, dtype=torch.bfloat16),
        torch.rand(50_000).reshape(100, 500).T,
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.rand(20_000) > 0.5,
        torch.rand(30_000, dtype=torch.complex64),
        torch.rand(3, 20_000)[1],
    ],
)
@pytest.mark.parametrize("by_value", [False, True])
def test_tensors_of_any_layout_and_type_come_out_equal_and_can_be_written(
    ends: Ends, tensor: torch.Tensor, by_value: bool
) -> None:
    got = ends.through({"x": tensor}, by_value=by_value)["x"]
    assert got.dtype == tensor.dtype
    assert got.shape == tensor.shape
    assert torch.equal(got, tensor)
    got.zero_()


def test_a_tensor_that_wants_gradients_or_is_sparse_goes_torchs_way(ends: Ends) -> None:
    wants = torch.ones(3, requires_grad=True)
    assert ends.through(wants, by_value=True).requires_grad
    assert torch.equal(ends.through(torch.eye(3).to_sparse(), by_value=True).to_dense(), torch.eye(3))


@pytest.mark.skipif(not AVAILABLE, reason="this system has no memory files")
def test_a_segment_goes_back_once_the_batch_is_let_go(ends: Ends) -> None:
    for _ in range(4):
        assert ends.through(big_batch()).num_rows == 100
        gc.collect()
    assert len(ends.segments._maps) == 1


@pytest.mark.skipif(not AVAILABLE, reason="this system has no memory files")
def test_memory_in_use_is_never_overwritten(ends: Ends) -> None:
    kept = [ends.through(np.full(50_000, n)) for n in range(10)]
    views = [array[10:20] for array in kept]
    del kept
    gc.collect()
    later = [ends.through(np.full(50_000, 100 + n)) for n in range(10)]
    assert [int(view[0]) for view in views] == list(range(10))
    assert [int(array[-1]) for array in later] == [100 + n for n in range(10)]


@pytest.mark.skipif(not AVAILABLE, reason="this system has no memory files")
def test_segments_that_are_too_small_make_room_for_a_larger_one(ends: Ends) -> None:
    for rows in (40, 400, 1200):
        ends.through(big_batch(rows))
        gc.collect()
    assert len(ends.segments._maps) == 1
    assert len(ends.inbox._mapped._maps) == 1


def test_who_keeps_very_many_batches_gets_them_by_the_socket_and_no_more_files(ends: Ends) -> None:
    files = open_files() if AVAILABLE else 0
    kept = [ends.through(np.full(5_000, n)) for n in range(MOST + 40)]
    assert [int(array[0]) for array in kept] == list(range(MOST + 40))
    if AVAILABLE:
        assert open_files() - files <= 2 * MOST


def test_a_request_is_read_whole_by_the_worker() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, ("make", 1, (1, 2, 3), []))
        assert receive(theirs) == ("make", 1, (1, 2, 3), [])
        ours.close()
        with pytest.raises(EOFError):
            receive(theirs)


def test_files_of_messages_that_nobody_took_are_closed() -> None:
    if not AVAILABLE:
        return
    before = open_files()
    ends = Ends()
    send(ends.theirs, big_batch(), ends.segments)
    ends.inbox.read()
    ends.close()
    del ends
    gc.collect()
    assert open_files() == before
