"""Tensors as numba takes them."""

import numpy as np
import torch


def raw(tensor: torch.Tensor) -> "np.typing.NDArray[np.generic]":
    """The tensor's memory: float32 as it is, bf16 as its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()
