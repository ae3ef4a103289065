"""One page of host memory to int8 and back, by the fastest way that takes its numbers."""

import numpy as np
import numpy.typing as npt
import torch

from kernels.kv_int8 import torch_ops
from kernels.paged_attention.raw import raw

try:
    from kernels.kv_int8 import cpu
except ImportError:  # numba is optional
    cpu = None  # type: ignore[assignment]

Bytes = npt.NDArray[np.uint8]


def quantize_page(page: torch.Tensor, stored: Bytes, num_tokens: int) -> None:
    """Fill `stored` with a page's codes and scales.

    Args:
        page: ``[rows, block_tokens, head_dim]``, contiguous, in host memory.
        stored: uint8 ``[stored_bytes]``.
        num_tokens: of the page; what is behind them counts for nothing, and its codes are 0.
    """
    if cpu is None or not cpu.supports(page):
        stored[:] = torch_ops.quantize(page[None], num_tokens)[0].numpy()
        return
    codes, scales = split_stored(stored, page.shape)
    cpu.quantize(raw(page), codes, scales, num_tokens)


def dequantize_page(stored: Bytes, page: torch.Tensor) -> None:
    """The inverse: fill the page."""
    if cpu is None or not cpu.supports(page):
        page[:] = torch_ops.dequantize(torch.from_numpy(stored)[None], page.shape, page.dtype)[0]
        return
    codes, scales = split_stored(stored, page.shape)
    cpu.dequantize(codes, scales, raw(page))


def split_stored(
    stored: Bytes, page: torch.Size
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Codes ``[rows, block_tokens, head_dim]`` and scales ``[rows, head_dim]`` of a stored page."""
    rows, _, head_dim = page
    num_codes = page.numel()
    codes = stored[:num_codes].view(np.int8).reshape(page)
    return codes, stored[num_codes:].view(np.float32).reshape(rows, head_dim)


def warm_up(page: torch.Tensor) -> None:
    """Compile what takes pages like this one, ``[..., block_tokens, head_dim]``, so that no copy
    waits for it."""
    rows = torch.zeros_like(page).flatten(0, -3)
    stored = np.zeros(torch_ops.stored_bytes(rows.shape), np.uint8)
    quantize_page(rows, stored, rows.shape[1])
    dequantize_page(stored, rows)
