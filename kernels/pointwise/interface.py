"""The arguments of the kernels of all devices."""

from typing import NamedTuple

import torch

SILU, GELU_TANH = 0, 1


class Norm(NamedTuple):
    """An RMS norm: ``x / sqrt(mean(x^2) + eps) * (offset + weight)``.

    Attributes:
        weight: ``[D]``, of the kind of what it is applied to, contiguous.
    """

    weight: torch.Tensor
    eps: float
    offset: float


class Heads(NamedTuple):
    """What a layer's products give for new tokens.

    Attributes:
        query: ``[T, H, D]``, last dimension contiguous.
        key, value: ``[T, Hkv, D]``, last dimension contiguous.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class Slots(NamedTuple):
    """Where in the pool each new token goes.

    Attributes:
        pages: int32 ``[T]``, contiguous; below 0: nowhere, it is padding.
        offsets: int32 ``[T]``, contiguous: place in the page.
    """

    pages: torch.Tensor
    offsets: torch.Tensor


class Rotary(NamedTuple):
    """A rotary embedding as tables.

    Attributes:
        cos, sin: ``[P, R]``, R even and at most D, contiguous.
        rows: int64 ``[T]``: of the tables, of each new token.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    rows: torch.Tensor


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
