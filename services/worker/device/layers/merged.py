"""Sibling linear layers as one product: q, k and v, or gate and up."""

from collections.abc import Sequence

import torch
from torch import nn

SIBLINGS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)


def joined(*parts: nn.Linear) -> nn.Linear:
    """One linear layer, of the parts' outputs side by side."""
    first = parts[0]
    num_out = sum(part.out_features for part in parts)
    has_bias = any(part.bias is not None for part in parts)
    layer = nn.Linear(first.in_features, num_out, bias=has_bias, device="meta")
    weight = torch.cat([part.weight.detach() for part in parts])
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.register_parameter("bias", joined_bias(parts))
    return layer


def joined_bias(parts: Sequence[nn.Linear]) -> nn.Parameter | None:
    """The parts' biases side by side, zeros for those that have none; None: none has."""
    if all(part.bias is None for part in parts):
        return None
    biases = [
        part.weight.new_zeros(part.out_features) if part.bias is None else part.bias.detach()
        for part in parts
    ]
    return nn.Parameter(torch.cat(biases), requires_grad=False)


class Merged:
    """The product of all siblings, made when the first of them is called, and handed out piece by
    piece to those that are called with the very same tensor.

    Not a module: the model's tree keeps its names, and each sibling stands where it stood.
    """

    def __init__(self, product: nn.Module, sizes: list[int]) -> None:
        self.product = product
        self.sizes = sizes
        self._input: torch.Tensor | None = None
        self._pieces: list[torch.Tensor | None] = []
        self._num_left = 0

    def piece(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """What sibling `index` makes of `x`."""
        piece = self._pieces[index] if x is self._input else None
        if piece is None:
            self._pieces = list(self.product(x).split(self.sizes, -1))
            self._num_left = len(self.sizes)
            self._input = x  # held, so that no other tensor can be taken for it
            piece = self._pieces[index]
            assert piece is not None, "just made"
        self._pieces[index] = None
        self._num_left -= 1
        if self._num_left == 0:
            self._input = None
        return piece


class Sibling(nn.Module):
    """One of the linear layers of a `Merged`. A module of its own under its old name: hooks on it
    are called, and what wraps it may ask for the running step and add to its output.

    Attributes:
        name: its name in its parent, such as ``q_proj``.
        product: what computes all of them; hooks on it see their outputs side by side.
        first_column: where its own begins there.
    """

    def __init__(self, merged: Merged, index: int, name: str, plain: nn.Linear) -> None:
        super().__init__()
        self._merged = merged
        self._index = index
        self.name = name
        self.in_features = plain.in_features
        self.out_features = plain.out_features

    @property
    def product(self) -> nn.Module:
        return self._merged.product

    @property
    def first_column(self) -> int:
        return sum(self._merged.sizes[: self._index])

    @property
    def merged(self) -> Merged:
        return self._merged

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._merged.piece(self._index, x)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, merged"
