"""streamio streams training records from object stores into PyTorch.

Names are imported when they are first used, so that the command and light programs need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamio.checkpoint import Checkpoints
    from streamio.dataset import StreamingDataset
    from streamio.distributed import DistributedIterableDataset
    from streamio.errors import DropRecord, StreamioError
    from streamio.index.build import build_index
    from streamio.loader.dataloader import DataLoader
    from streamio.mixture import Mixture
    from streamio.observe.stats import Stats
    from streamio.packing_tokens import pack
    from streamio.storage.retry import Retry

__version__ = "0.1.0"

__all__ = [
    "Checkpoints",
    "DataLoader",
    "DistributedIterableDataset",
    "DropRecord",
    "Mixture",
    "Retry",
    "Stats",
    "StreamingDataset",
    "StreamioError",
    "build_index",
    "pack",
]

_MODULES = {
    "Checkpoints": "streamio.checkpoint",
    "DataLoader": "streamio.loader.dataloader",
    "DistributedIterableDataset": "streamio.distributed",
    "DropRecord": "streamio.errors",
    "Mixture": "streamio.mixture",
    "Retry": "streamio.storage.retry",
    "Stats": "streamio.observe.stats",
    "StreamingDataset": "streamio.dataset",
    "StreamioError": "streamio.errors",
    "build_index": "streamio.index.build",
    "pack": "streamio.packing_tokens",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'streamio' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
