"""Which implementation serves a tensor: by where it is."""

from types import ModuleType

import torch

from kernels.plain import is_plain
from kernels.pointwise import plain
from kernels.pointwise.interface import Heads, Norm, Rotary, Slots
from kernels.triton_kernels import triton_kernels

try:
    from kernels.pointwise import cpu
except ImportError:  # numba is optional: layers stay as they are
    cpu = None  # type: ignore[assignment]

PACKAGE = "pointwise"


def supports(tensor: torch.Tensor) -> bool:
    """Whether there are kernels for tensors like this one."""
    kernels = _kernels(tensor)
    return kernels is not None and bool(kernels.supports(tensor))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * (offset + weight)`` over the last dimension.

    Args:
        x: ``[..., D]`` or ``[1, A, B, D]`` with any strides, of a kind that is supported.
        weight: ``[D]``, like `x`, contiguous.

    Returns:
        like `x`, contiguous.
    """
    out: torch.Tensor = _kernels(x).rms_norm(x, weight, eps, offset)  # type: ignore[union-attr]
    return out


def rotate(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding of the first R of D dimensions, by halves: ``x cos + rotate_half(x) sin``.

    Args:
        query, key: ``[1, H, T, D]`` and ``[1, Hkv, T, D]``, last dimension contiguous.
        cos, sin: ``[1, T, R]``, contiguous, R even and at most D.

    Returns:
        like `query` and `key`, of which nothing is changed; heads of a token lie side by side.
    """
    turned: tuple[torch.Tensor, torch.Tensor]
    turned = _kernels(query).rotate(query, key, cos, sin)  # type: ignore[union-attr]
    return turned


def add_norm(
    residual: torch.Tensor,
    branch: torch.Tensor,
    scale: float,
    after: Norm | None,
    before: Norm | None,
) -> torch.Tensor:
    """The end of one sublayer and the beginning of the next in one pass over memory:
    ``residual += scale * after(branch)``, in place, and of that ``before(residual)``. Each is
    rounded to the kind of its elements where a decoder of single layers rounds it.

    Args:
        residual, branch: ``[T, D]``, contiguous.
        after, before: None: no norm there.

    Returns:
        ``before(residual)``, or without a norm `residual` itself.
    """
    out: torch.Tensor = _kernels(residual).add_norm(  # type: ignore[union-attr]
        residual, branch, scale, after, before
    )
    return out


def rotate_store(
    heads: Heads,
    pool: torch.Tensor,
    slots: Slots,
    rotary: Rotary | None,
    query_norm: Norm | None,
    key_norm: Norm | None,
) -> torch.Tensor:
    """What stands between a layer's products and its attention, in one pass over memory: queries
    and keys normed head by head and turned, keys and values stored.

    Args:
        pool: ``[num_pages, 2, Hkv, block_tokens, D]``, contiguous: `slots` of it are written.
        rotary: None: nothing is turned.
        query_norm, key_norm: of single heads; None: no norm there.

    Returns:
        The queries, ``[T, H, D]``, contiguous.
    """
    out: torch.Tensor = _kernels(pool).rotate_store(  # type: ignore[union-attr]
        heads, pool, slots, rotary, query_norm, key_norm
    )
    return out


def gate(gate: torch.Tensor, up: torch.Tensor, activation: int) -> torch.Tensor:
    """``activation(gate) * up``.

    Args:
        gate, up: ``[..., T, N]``, leading dimensions 1; rows may lie apart.
        activation: `SILU` or `GELU_TANH`.

    Returns:
        like `gate`, contiguous.
    """
    out: torch.Tensor = _kernels(gate).gate(gate, up, activation)  # type: ignore[union-attr]
    return out


def warm_up(tensor: torch.Tensor) -> None:
    """Compile what serves elements like these, so that no step waits for it. Kernels for a GPU are
    made for a model's own sizes, when it is first run.
    """
    if not tensor.is_cuda and (kernels := _kernels(tensor)) is not None and supports(tensor):
        kernels.warm_up(tensor.dtype)


def _kernels(tensor: torch.Tensor) -> ModuleType | None:
    if tensor.is_cuda:
        return triton_kernels(PACKAGE, tensor.device)
    return plain if is_plain() else cpu
