"""Linear layers whose weights lie as oneDNN wants them."""

from typing import Any

import torch
from torch import nn

from services.worker.device.layers.invariant import in_fixed_rows
from services.worker.device.layers.merged import joined_bias

# oneDNN chooses the layout for this many rows. From 16 on it is always the same one, which was the
# best for every number of rows from 1 to 512.
LAYOUT_ROWS = 64

# A product of more rows loses half its speed unless the layer is wide, so it is cut. Measured with
# AMX at 512 rows, 2048 to 768: packed 1.28 ms, cut 0.77, plain 0.93; 768 to 2304: 0.67, 0.74, 0.93.
ROWS_MAX = 256

# How torch names the instructions for products of bf16.
_INSTRUCTIONS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether packing pays for weights of this kind on this processor.

    float32 stays plain: for one row, packed weights were twice as slow. bf16 without instructions
    for it gains nothing.
    """
    return bool(
        dtype == torch.bfloat16
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and any(getattr(torch.cpu, name, _no)() for name in _INSTRUCTIONS)
    )


def _no() -> bool:
    return False


def is_plain(module: nn.Module) -> bool:
    """Whether it is a linear layer as torch made it, without hooks."""
    return type(module) is nn.Linear and not (module._forward_hooks or module._forward_pre_hooks)


class PackedLinear(nn.Module):
    """``x W^T + b`` like the linear layers that it is made of, side by side. It keeps no plain copy
    of their weights.

    Args:
        fixed_rows: see `invariant`.

    Attributes:
        packed_bytes: of its weights.
    """

    def __init__(self, *parts: nn.Linear, fixed_rows: bool = False) -> None:
        super().__init__()
        first = parts[0]
        self.in_features = first.in_features
        self.out_features = sum(part.out_features for part in parts)
        weight = first.weight if len(parts) == 1 else torch.cat([part.weight for part in parts])
        self.packed_bytes = weight.numel() * weight.element_size()
        self._fixed_rows = fixed_rows
        self._cuts = self.out_features < 2 * self.in_features
        # Not a parameter: its memory is oneDNN's, and most of what torch does with tensors fails.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), LAYOUT_ROWS)
        self._multiply: Any = torch.ops.mkldnn._linear_pointwise.default
        self.bias = joined_bias(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._fixed_rows:
            return in_fixed_rows(self._product, self.out_features, x)
        num_rows = x.numel() // self.in_features
        if num_rows <= ROWS_MAX or not self._cuts:
            return self._product(x)
        rows = x.reshape(num_rows, self.in_features)
        out = torch.empty((num_rows, self.out_features), dtype=x.dtype)
        for start in range(0, num_rows, ROWS_MAX):
            out[start : start + ROWS_MAX] = self._product(rows[start : start + ROWS_MAX])
        return out.view(*x.shape[:-1], self.out_features)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._multiply(x, self._packed, self.bias, "none", [], "")
        return out

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
