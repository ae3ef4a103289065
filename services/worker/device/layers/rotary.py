"""Rotary embedding in one pass, where attention layers call transformers' function for it.

That function is a global of each architecture's source file, and is not touched there: the
attention layers of one model get a ``forward`` of their own, the same code with another function
under this name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from transformers.utils.deprecation import deprecate_kwarg

from kernels import pointwise as kernels

NAME = "apply_rotary_pos_emb"
AGREES = 1e-5

Rotate = Callable[..., Any]

# The code of what is put around a function that still takes an argument by its former name.
_RENAMING = {deprecate_kwarg("old", "0")(lambda: None).__code__}


@dataclass(slots=True)
class RotaryProbe:
    """What the layers of a class hand to their rotary function, seen while a model runs.

    Attributes:
        original: that function.
        shapes: of query, key and cosines in every call.
        device: where those were.
        is_known: whether all calls were of the form that ours takes.
    """

    original: Rotate
    shapes: set[tuple[torch.Size, torch.Size, torch.Size]] = field(default_factory=set)
    device: torch.device | None = None
    is_known: bool = True

    def __call__(self, *args: Any, **named: Any) -> Any:
        if named or not is_plain_rotary(args):
            self.is_known = False
        else:
            self.shapes.add((args[0].shape, args[1].shape, args[2].shape))
            self.device = args[0].device
        return self.original(*args, **named)

    def agrees(self) -> bool:
        """Whether ours gives what the original gives, for random numbers of those shapes."""
        if not self.is_known or not self.shapes:
            return False
        generator = torch.Generator().manual_seed(0)
        return all(self._agrees(shapes, generator) for shapes in self.shapes)

    def _agrees(self, shapes: tuple[torch.Size, ...], generator: torch.Generator) -> bool:
        query, key, cos, sin = (
            torch.randn(shape, generator=generator).to(self.device)
            for shape in (*shapes, shapes[-1])
        )
        try:
            wanted = self.original(query.clone(), key.clone(), cos, sin)
            ours = kernels.rotate(query, key, cos, sin)
            return all(
                torch.allclose(mine, theirs, AGREES, AGREES)
                for mine, theirs in zip(ours, wanted, strict=True)
            )
        except Exception:  # a stranger's function: whatever it raises, it is not ours
            return False


def rotary_users(model: nn.Module) -> dict[Rotate, list[nn.Module]]:
    """Layers whose ``forward`` calls a rotary function by its usual name, by that function."""
    users: dict[Rotate, list[nn.Module]] = {}
    for module in model.modules():
        forward = _plain_forward(module)
        if forward is None or "forward" in vars(module):
            continue
        if NAME in forward.__code__.co_names and callable(forward.__globals__.get(NAME)):
            users.setdefault(forward.__globals__[NAME], []).append(module)
    return users


def sees_positions(module: nn.Module) -> bool:
    """Whether a layer's ``forward`` uses positions, beside what it hands to its rotary function."""
    forward = _plain_forward(module)
    return forward is None or "position_ids" in forward.__code__.co_varnames


def use_rotary(module: nn.Module, rotate: Rotate) -> None:
    """Let this layer, and no other, call `rotate` for its rotary embedding."""
    plain = _plain_forward(module)
    assert plain is not None, "see rotary_users"
    named = {**plain.__globals__, NAME: rotate}
    forward = FunctionType(
        plain.__code__, named, plain.__name__, plain.__defaults__, plain.__closure__
    )
    forward.__kwdefaults__ = plain.__kwdefaults__
    module.forward = MethodType(forward, module)


def _plain_forward(module: nn.Module) -> FunctionType | None:
    """Its class's, without what transformers puts around it to take names that are no more."""
    forward: Any = type(module).forward
    while getattr(forward, "__code__", None) is not None and forward.__code__ in _RENAMING:
        forward = forward.__wrapped__
    return forward if isinstance(forward, FunctionType) else None


def fast_rotary(original: Rotate) -> Rotate:
    """Ours for calls of the form that was tried, the original for all others."""

    def rotate(*args: Any, **named: Any) -> Any:
        if named or not is_plain_rotary(args):
            return original(*args, **named)
        return kernels.rotate(*args)

    return rotate


def is_plain_rotary(args: tuple[Any, ...]) -> bool:
    if len(args) != 4:
        return False
    query, key, cos, sin = args
    return (
        query.dim() == 4
        and cos.dim() == 3
        and query.shape[0] == key.shape[0] == cos.shape[0] == 1
        and query.shape[2] == key.shape[2] == cos.shape[1]
        and cos.shape == sin.shape
        and cos.shape[2] % 2 == 0
        and cos.shape[2] <= query.shape[3]
        and query.shape[3] == key.shape[3]
        and query.stride(3) == key.stride(3) == 1
        and query.dtype == key.dtype == cos.dtype == sin.dtype
        and cos.is_contiguous()
        and sin.is_contiguous()
        and kernels.supports(query)
    )
