"""The arguments of the kernels of all devices."""

from typing import NamedTuple

import torch

SILU, GELU_TANH = 0, 1


class Rows(NamedTuple):
    """Rows in memory: their numbers and strides, in elements, outside and inside."""

    num_outer: int
    num_inner: int
    outer: int
    inner: int


def rows_of(x: torch.Tensor) -> Rows | None:
    """Where the rows of ``[..., D]`` or ``[1, A, B, D]`` lie; None: it is to be made contiguous."""
    if x.is_contiguous():
        return Rows(x.numel() // x.shape[-1], 1, x.shape[-1], 0)
    if x.dim() == 4 and x.shape[0] == 1 and x.stride(3) == 1:
        return Rows(x.shape[1], x.shape[2], x.stride(1), x.stride(2))
    return None
