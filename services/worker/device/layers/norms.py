"""RMS norms in one pass over memory."""

import copy

import torch
from torch import nn

from kernels import pointwise as kernels

# What transformers multiplies with: the weight (Llama), or one more than the weight (Gemma).
OFFSETS = (0.0, 1.0)
AGREES = 1e-5


class FastRmsNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * (offset + weight)``; see `kernels.pointwise.rms_norm`."""

    def __init__(self, weight: nn.Parameter, eps: float, offset: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.rms_norm(x, self.weight, self.eps, self.offset)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}, offset={self.offset}"


def fast_norm(norm: nn.Module) -> FastRmsNorm | None:
    """A faster norm that computes the same; None: `norm` is none of those that this can do.

    It is found by trying: `norm` itself, in float32 and with other weights, beside ours.
    """
    weight = _only_weight(norm)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if weight is None or not isinstance(eps, float) or not kernels.supports(weight):
        return None
    trial = copy.deepcopy(norm).float()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(weight.shape, generator=generator).to(weight.device)
    trial.weight = nn.Parameter(drawn, requires_grad=False)
    for scale in (1.0, 1e-3):  # so small that eps shows, too
        x = scale * torch.randn((1, 3, *weight.shape), generator=generator).to(weight.device)
        try:
            wanted = trial(x.clone())
        except Exception:  # a stranger's module: whatever it raises, it is not what was looked for
            return None
        offsets = [each for each in OFFSETS if _agrees(wanted, x, trial.weight, eps, each)]
        if len(offsets) != 1:
            return None
    return FastRmsNorm(weight, eps, offsets[0])


def _only_weight(norm: nn.Module) -> nn.Parameter | None:
    """The weight of a module that holds nothing else."""
    names = [name for name, _ in norm.named_parameters()]
    if names != ["weight"] or next(norm.children(), None) or next(norm.buffers(), None) is not None:
        return None
    if norm._forward_hooks or norm._forward_pre_hooks:
        return None
    weight = norm.weight
    if not isinstance(weight, nn.Parameter):
        return None
    return weight if weight.dim() == 1 and weight.is_contiguous() else None


def _agrees(
    wanted: object, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float
) -> bool:
    if not isinstance(wanted, torch.Tensor) or wanted.shape != x.shape:
        return False
    return torch.allclose(kernels.rms_norm(x, weight, eps, offset), wanted, AGREES, AGREES)
