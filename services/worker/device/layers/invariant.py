"""Products whose rows do not depend on how many others are computed with them.

A library chooses how it sums by the number of rows, so in bf16 the same request may be answered
with another token in another batch. Here every product has the same number of rows: fewer are
padded, more are cut.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.pytorch_utils import Conv1D

# As many as a step mostly decodes; a pass over the weights is bound by memory up to about here.
ROWS = 32

_PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "_linear_pointwise",
    "mkldnn_linear", "_grouped_mm", "_scaled_mm", "_int_mm", "convolution", "_addmm_activation",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
}  # fmt: skip


def in_fixed_rows(
    product: Callable[[torch.Tensor], torch.Tensor], num_out: int, x: torch.Tensor
) -> torch.Tensor:
    """``product(x)``, computed `ROWS` rows at a time.

    Args:
        product: of ``[ROWS, num_in]`` with weights, ``[ROWS, num_out]``.
        x: ``[..., num_in]``.
    """
    rows = x.reshape(-1, x.shape[-1])
    num_rows = rows.shape[0]
    whole = num_rows // ROWS * ROWS
    out = x.new_empty((num_rows, num_out))
    for start in range(0, whole, ROWS):
        out[start : start + ROWS] = product(rows[start : start + ROWS])
    if whole < num_rows:
        padded = x.new_zeros((ROWS, x.shape[-1]))
        padded[: num_rows - whole] = rows[whole:]
        out[whole:] = product(padded)[: num_rows - whole]
    return out.view(*x.shape[:-1], num_out)


def fix_rows(model: nn.Module) -> None:
    """Have every linear layer of a model, as transformers makes them, compute in fixed rows."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            _replace(module, module.out_features)
        elif isinstance(module, Conv1D):
            _replace(module, module.nf)


def _replace(module: Any, num_out: int) -> None:
    module.forward = partial(in_fixed_rows, module.forward, num_out)


@contextmanager
def products_seen() -> Iterator[set[str]]:
    """Names of the products that are computed in other than `ROWS` rows meanwhile.

    One with a single term to add up is none: whatever it does, there is no order to it.
    """
    seen: set[str] = set()
    with _Watch(seen):
        yield seen


class _Watch(TorchDispatchMode):
    def __init__(self, seen: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if name in _PRODUCTS:
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            left = tensors[1] if name.startswith(("addm", "badd")) else tensors[0]
            if left.shape[-1] != 1 and (left.dim() < 2 or left.shape[-2] != ROWS):
                self._seen.add(name)
        return func(*args, **(kwargs or {}))
