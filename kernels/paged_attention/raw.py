"""Tensors as numba takes them."""

import numpy as np
import torch


def raw(tensor: torch.Tensor) -> "np.typing.NDArray[np.generic]":
    """The tensor's memory: float32 as it is, bf16 as its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()


def raw_rows(rows: torch.Tensor) -> tuple["np.typing.NDArray[np.generic]", int, int]:
    """Rows of heads that may lie apart, as one run of elements, with the distances in it.

    numba compiles a function for strided arrays and again for contiguous ones; a run is a run.

    Args:
        rows: ``[num_rows, num_heads, head_dim]``, last dimension contiguous.

    Returns:
        the elements from the first on, and by how many rows and heads lie apart.
    """
    num_rows, num_heads, head_dim = rows.shape
    row, head, _ = rows.stride()
    length = (num_rows - 1) * row + (num_heads - 1) * head + head_dim if num_rows else 0
    return raw(rows.as_strided((length,), (1,))), row, head
