"""What the device needs of a step, in one copy."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 16  # bytes: more than any element has
_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


def upload(arrays: list[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Arrays of a host on a device, as parts of one buffer that is copied at once, behind what the
    current stream does, and without waiting for it.

    Args:
        arrays: int32, float32 or float64.
    """
    ends = np.cumsum([_padded(array.nbytes) for array in arrays])
    total = int(ends[-1]) if len(ends) else 0
    host = torch.empty(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
    raw = host.numpy()
    for array, end in zip(arrays, ends.tolist(), strict=True):
        start = end - _padded(array.nbytes)
        raw[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    there = host.to(device, non_blocking=True)
    return [
        there[end - _padded(array.nbytes) :][: array.nbytes]
        .view(_TYPES[array.dtype])
        .view(array.shape)
        for array, end in zip(arrays, ends.tolist(), strict=True)
    ]


class ReadBack:
    """Tensors of a device being copied to the host."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if not tensors or tensors[0].device.type != "cuda":
            self._host = tensors
            return
        self._host = [
            torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in tensors
        ]
        for host, tensor in zip(self._host, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event(blocking=True)
        self._event.record()

    def wait(self) -> list[torch.Tensor]:
        """The tensors, once they are here."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
