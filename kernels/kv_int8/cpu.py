"""Pages as int8 on one core of the CPU (numba).

The threads that copy pages call it beside the steps: so it holds no lock of Python's, and wakes no
other thread.
"""

from typing import Any

import numpy as np
import torch
from numba import njit

from kernels.bits import bits_of_float, float_of_bits, narrow, widen
from kernels.compile_lock import call_compiled

_KINDS = (torch.bfloat16, torch.float32)


def supports(page: torch.Tensor) -> bool:
    """Whether these kernels take pages like this one."""
    return page.device.type == "cpu" and page.dtype in _KINDS


def quantize(page: Any, codes: Any, scales: Any, num_tokens: int) -> None:
    """Fill `codes` and `scales` with what stands for a page.

    Args:
        page: ``[rows, block_tokens, head_dim]``, float32, or bf16 as its bits.
        codes: int8, like the page.
        scales: float32 ``[rows, head_dim]``.
        num_tokens: of the page; what is behind them counts for nothing, and its codes are 0.
    """
    call_compiled(_quantize, page.dtype, page, codes, scales, num_tokens)


def dequantize(codes: Any, scales: Any, page: Any) -> None:
    """The inverse: fill the page."""
    call_compiled(_dequantize, page.dtype, codes, scales, page)


# No loose mathematics here: the bytes are the same wherever they are made.
@njit(error_model="numpy", nogil=True, cache=True)
def _quantize(page, codes, scales, num_tokens):  # type: ignore[no-untyped-def]
    num_rows, block_tokens, width = page.shape
    greatest = np.empty(width, np.uint32)
    for row in range(num_rows):
        greatest[:] = 0
        for token in range(num_tokens):
            for d in range(width):
                # As bits, NaN is greater than infinity, and that than any number.
                bits = bits_of_float(widen(page[row, token, d])) & np.uint32(0x7FFFFFFF)
                greatest[d] = max(greatest[d], bits)
        for d in range(width):
            scales[row, d] = _scale(greatest[d])
        for token in range(num_tokens):
            for d in range(width):
                codes[row, token, d] = np.int8(np.rint(widen(page[row, token, d]) / scales[row, d]))
        for token in range(num_tokens, block_tokens):
            for d in range(width):
                codes[row, token, d] = np.int8(0)


@njit(error_model="numpy", nogil=True, cache=True)
def _dequantize(codes, scales, page):  # type: ignore[no-untyped-def]
    num_rows, block_tokens, width = page.shape
    for row in range(num_rows):
        for token in range(block_tokens):
            for d in range(width):
                value = np.float32(codes[row, token, d]) * scales[row, d]
                page[row, token, d] = narrow(value, page[row, token, d])


@njit(inline="always", error_model="numpy")
def _scale(bits):  # type: ignore[no-untyped-def]
    """As in `torch_ops`, of the greatest element's bits."""
    if bits >= np.uint32(0x7F000000):
        return np.float32(np.inf)
    spare = np.uint32(0x7F)
    of_code = bits_of_float(float_of_bits(bits) / np.float32(127.0))
    return max(float_of_bits((of_code + spare) & ~spare), np.float32(2.0**-126))
