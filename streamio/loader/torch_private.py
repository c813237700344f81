"""What torch has no public way for: the only place that touches its private names."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data._utils import worker as _worker


def set_worker_info(worker_id: int, num_workers: int, seed: int, dataset: Any) -> None:
    """Make `torch.utils.data.get_worker_info()` answer as in a worker of torch's own loader."""
    _worker._worker_info = _worker.WorkerInfo(  # noqa: SLF001
        id=worker_id, num_workers=num_workers, seed=seed, dataset=dataset
    )


def accelerated() -> bool:
    """Whether there is an accelerator that page-locked memory is good for."""
    accelerator = getattr(torch, "accelerator", torch.cuda)  # torch.accelerator is there from 2.6 on
    return bool(accelerator.is_available())


def pin(batch: Any) -> Any:
    """A batch with its tensors in page-locked memory."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]
