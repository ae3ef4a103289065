"""The same by torch's own operators: for what runs a few times (`kernels.plain`), on a CPU."""

import torch
import torch.nn.functional as F

from kernels.pointwise.interface import SILU, Heads, Norm, Rotary, Slots


def supports(tensor: torch.Tensor) -> bool:
    """Whether these take tensors like this one."""
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.bfloat16)


def warm_up(dtype: torch.dtype) -> None:
    """Nothing is compiled."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """See `select.rms_norm`."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (offset + weight.float())).to(x.dtype).contiguous()


def rotate(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `select.rotate`."""
    return _turned(query, cos[:, None], sin[:, None]), _turned(key, cos[:, None], sin[:, None])


def gate(gate: torch.Tensor, up: torch.Tensor, activation: int) -> torch.Tensor:
    """See `select.gate`."""
    wide = gate.float()
    level = F.silu(wide) if activation == SILU else F.gelu(wide, approximate="tanh")
    return (level * up.float()).to(gate.dtype)


def add_norm(
    residual: torch.Tensor,
    branch: torch.Tensor,
    scale: float,
    after: Norm | None,
    before: Norm | None,
) -> torch.Tensor:
    """See `select.add_norm`."""
    residual += (branch if after is None else rms_norm(branch, *after)) * scale
    return residual if before is None else rms_norm(residual, *before)


def rotate_store(
    heads: Heads,
    pool: torch.Tensor,
    slots: Slots,
    rotary: Rotary | None,
    query_norm: Norm | None,
    key_norm: Norm | None,
) -> torch.Tensor:
    """See `select.rotate_store`."""
    query, key, value = heads
    query = query if query_norm is None else rms_norm(query, *query_norm)
    key = key if key_norm is None else rms_norm(key, *key_norm)
    if rotary is not None:
        cos, sin = rotary.cos[rotary.rows][:, None], rotary.sin[rotary.rows][:, None]
        query, key = _turned(query, cos, sin), _turned(key, cos, sin)
    is_stored = slots.pages >= 0
    pages, offsets = slots.pages[is_stored], slots.offsets[is_stored]
    pool[pages, 0, :, offsets] = key[is_stored]
    pool[pages, 1, :, offsets] = value[is_stored]
    return query.contiguous()


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first elements of each head turned, as many as there are cosines."""
    width = cos.shape[-1]
    wide = x[..., :width].float()
    low, high = wide.chunk(2, -1)
    turned = wide * cos.float() + torch.cat((-high, low), -1) * sin.float()
    return torch.cat((turned.to(x.dtype), x[..., width:]), -1)
