"""Sums over the ranks of a model."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_S = 60.0  # of one sum, and of the ranks' meeting: then one of them hangs


class Group:
    """The ranks of one model, on one host. Each takes part in the same sums, in the same order.

    Args:
        folder: private to them, by which they meet.

    Raises:
        RuntimeError: not all have come in time.
    """

    def __init__(self, folder: Path, rank: int, num_ranks: int, timeout_s: float) -> None:
        backend: Any = dist  # whose types say little of it
        store = backend.FileStore(str(folder / "ranks"), num_ranks)
        options = backend.ProcessGroupGloo._Options()
        options._devices = [backend.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_s)
        self._group = backend.ProcessGroupGloo(store, rank, num_ranks, options)

    def sum(self, x: torch.Tensor) -> None:
        """Replace x, contiguous, by the sum of all ranks' x.

        Raises:
            RuntimeError: a rank is gone, or did not come in time.
        """
        self._group.allreduce([x]).wait()
