"""Turns an object into a pickle and the large buffers beside it, and back without copying these.

Arrow batches, numpy arrays and dense CPU tensors go beside the pickle; everything else goes into it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import pyarrow as pa

#: Buffers of fewer bytes are left in the pickle.
SMALL = 1024


class Packed:
    """An object as parts that are to be laid behind each other.

    Args:
        message: The object.
        by_value: Whether torch's own sharing by file descriptors is avoided for tensors of uncommon kinds.
    """

    def __init__(self, message: Any, *, by_value: bool = False) -> None:
        self._parts: list[Any] = []
        self._marks: dict[int, tuple[bytearray, Any]] = {}
        stream = io.BytesIO()
        pickler = (_ByValue if by_value else _Sharing)(stream, pickle.HIGHEST_PROTOCOL, True, self._beside)
        pickler.packed = self
        pickler.dump(message)
        self._parts.insert(0, stream.getbuffer())
        #: Bytes of each part.
        self.sizes = [_size(part) for part in self._parts]

    def write(self, memory: memoryview) -> None:
        """Lay the parts into memory of `sum(aligned(size) for size in self.sizes)` bytes."""
        start = 0
        for part, size in zip(self._parts, self.sizes, strict=True):
            _write(part, memory[start : start + size])
            start += aligned(size)

    def mark(self, batch: pa.RecordBatch) -> pickle.PickleBuffer:
        """A buffer that stands for a batch until it is written."""
        mark = bytearray(1)
        self._marks[id(mark)] = (mark, batch)
        return pickle.PickleBuffer(mark)

    def _beside(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer out of the pickle; True leaves it there."""
        raw = buffer.raw()
        marked = self._marks.get(id(raw.obj))
        if marked is not None:
            self._parts.append(marked[1])
        elif raw.nbytes < SMALL:
            return True
        else:
            self._parts.append(raw)
        return False


def unpacked(memory: memoryview, sizes: Sequence[int]) -> Any:
    """The object whose parts lie in memory. What was beside the pickle stays there and keeps the memory in use."""
    parts = []
    start = 0
    for size in sizes:
        parts.append(memory[start : start + size])
        start += aligned(size)
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - our own workers' bytes


def aligned(size: int) -> int:
    """A part's bytes with those that keep the next one aligned as Arrow wants it."""
    return -(-size // 64) * 64


class _Reducing:
    packed: Packed

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            if value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad:
                return _tensor, (_flat(value), value.dtype, tuple(value.shape))
        elif kind.__name__ == "RecordBatch" and kind.__module__ == "pyarrow.lib":
            return _batch, (self.packed.mark(value),)
        return NotImplemented


class _Sharing(_Reducing, ForkingPickler):
    pass


class _ByValue(_Reducing, pickle.Pickler):
    pass


def _flat(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Its bytes as numpy has them: not all of torch's types are numpy's."""
    array: np.ndarray[Any, Any] = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return array


def _tensor(data: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(data if data.flags.writeable else data.copy()).view(dtype).reshape(shape)


def _batch(memory: Any) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(memory)).read_next_batch()


def _size(part: Any) -> int:
    if isinstance(part, memoryview):
        return part.nbytes
    import pyarrow as pa

    sink = pa.MockOutputStream()
    _write_batch(part, sink)
    return int(sink.size())


def _write(part: Any, memory: memoryview) -> None:
    if isinstance(part, memoryview):
        np.copyto(np.frombuffer(memory, np.uint8), np.frombuffer(part, np.uint8))  # lets other threads run meanwhile
        return
    import pyarrow as pa

    _write_batch(part, pa.FixedSizeBufferWriter(pa.py_buffer(memory)))


def _write_batch(batch: pa.RecordBatch, sink: Any) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
