"""Weights straight from mapped files to a GPU.

transformers copies each tensor from memory that the GPU does not address: the driver then copies it
once more, into memory of its own. Here each thread that loads tensors copies what is mapped into
two pieces of pinned memory by turns, and the GPU takes one while the other is filled.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

PIECE_BYTES = 8 * 1024 * 1024


@contextmanager
def staged_to(device: str) -> Iterator[None]:
    """Have transformers read safetensors files straight to a device; one load at a time.

    A transformers that opens files in another way than the known ones loads as it does anyway.
    """
    from transformers import modeling_utils

    before = getattr(modeling_utils, "safe_open", None)
    if before is None:
        yield
        return
    staging = _Staging(torch.device(device))

    def opened(*args: Any, **options: Any) -> _StagedFile:
        return _StagedFile(before(*args, **options), staging)

    modeling_utils.safe_open = opened
    try:
        yield
    finally:
        modeling_utils.safe_open = before


class _Staging(threading.local):
    """Pieces of host memory, for each thread its own.

    Args:
        device: where tensors go. Of the CPU, pieces are plain memory; of `meta`, nothing is read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "meta":
            return
        is_gpu = device.type == "cuda"
        self._pieces = torch.empty((2, PIECE_BYTES), dtype=torch.uint8, pin_memory=is_gpu)
        self._taken = [torch.cuda.Event(), torch.cuda.Event()] if is_gpu else []
        self._next = 0

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """A tensor of the host, on the device; what is launched there from now on sees it."""
        target = torch.empty(source.shape, dtype=source.dtype, device=self._device)
        if target.is_meta:
            return target
        from_bytes = source.reshape(-1).view(torch.uint8)
        to_bytes = target.view(-1).view(torch.uint8)
        for begin in range(0, len(from_bytes), PIECE_BYTES):
            part = from_bytes[begin : begin + PIECE_BYTES]
            at = self._next = 1 - self._next
            piece = self._pieces[at, : len(part)]
            if self._taken:
                self._taken[at].synchronize()  # the device has read what was in it
            piece.numpy()[:] = part.numpy()  # by this thread alone: there are several
            to_bytes[begin : begin + len(part)].copy_(piece, non_blocking=True)
            if self._taken:
                self._taken[at].record()
        return target


class _StagedFile:
    """A safetensors file as transformers uses it."""

    def __init__(self, opened: Any, staging: _Staging) -> None:
        self._opened = opened
        self._staging = staging

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __enter__(self) -> "_StagedFile":
        self._opened.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.__exit__(*error)

    def get_slice(self, name: str) -> "_StagedSlice":
        return _StagedSlice(self._opened.get_slice(name), self._staging)


class _StagedSlice:
    """A tensor that is not read yet."""

    def __init__(self, part: Any, staging: _Staging) -> None:
        self._part = part
        self._staging = staging

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._staging.copy(self._part[index])
