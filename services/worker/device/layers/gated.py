"""Gated MLPs, ``down(activation(gate(x)) * up(x))``, with activation and product in one pass."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from kernels import pointwise as kernels

PARTS = ("gate_proj", "up_proj", "down_proj")
ACTIVATIONS = (kernels.SILU, kernels.GELU_TANH)
AGREES = 1e-5
_TRIAL_IN, _TRIAL_BETWEEN = 8, 24


class GatedMlp(nn.Module):
    """Like the MLP whose linear layers it takes over. They keep their names, and are called as
    modules, so that hooks on them, or layers that wrap them, work as before."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def __init__(self, plain: nn.Module, activation: int) -> None:
        super().__init__()
        for name in PARTS:
            self.add_module(name, plain.get_submodule(name))
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = kernels.gate(self.gate_proj(x), self.up_proj(x), self.activation)
        out: torch.Tensor = self.down_proj(between)
        return out


def activation_of(function: Callable[[torch.Tensor], torch.Tensor] | None) -> int | None:
    """Which of the activations that kernels know a function is; None: none of them."""
    if function is None:
        return None
    x = torch.linspace(-6, 6, 101)[None]
    ones = torch.ones_like(x)
    fits = [
        each
        for each in ACTIVATIONS
        if kernels.supports(x)
        and torch.allclose(kernels.gate(x, ones, each), function(x), AGREES, AGREES)
    ]
    return fits[0] if len(fits) == 1 else None


def fast_mlp(mlp: nn.Module) -> GatedMlp | None:
    """A faster MLP that computes the same; None: `mlp` is none of those that this can do.

    It is found by trying: `mlp` with three small layers in place of its own, beside ours.
    """
    children = dict(mlp.named_children())
    parts = [children.pop(name, None) for name in PARTS]
    if not all(isinstance(part, nn.Linear) and kernels.supports(part.weight) for part in parts):
        return None
    if mlp._forward_hooks or mlp._forward_pre_hooks or mlp._parameters or mlp._buffers:
        return None
    if any(next(child.parameters(), None) is not None for child in children.values()):
        return None
    device = next(mlp.parameters()).device
    trial = _with_small_layers(mlp, device)
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn((1, 5, _TRIAL_IN), generator=generator).to(device)
    try:
        wanted = trial(x.clone())
    except Exception:  # a stranger's module: whatever it raises, it is not what was looked for
        return None
    if not isinstance(wanted, torch.Tensor) or wanted.shape != x.shape:
        return None
    fits = [
        each
        for each in ACTIVATIONS
        if torch.allclose(GatedMlp(trial, each)(x), wanted, AGREES, AGREES)
    ]
    return GatedMlp(mlp, fits[0]) if len(fits) == 1 else None


def _with_small_layers(mlp: nn.Module, device: torch.device) -> nn.Module:
    """A copy in all but its linear layers, which are small and in float32."""
    trial = copy.copy(mlp)
    trial._modules = dict(mlp._modules)
    generator = torch.Generator().manual_seed(0)
    for name in PARTS:
        shape = (_TRIAL_IN, _TRIAL_BETWEEN) if name != PARTS[2] else (_TRIAL_BETWEEN, _TRIAL_IN)
        layer = nn.Linear(*shape, bias=False)
        weight = torch.randn(layer.weight.shape, generator=generator).to(device)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        trial._modules[name] = layer
    return trial
