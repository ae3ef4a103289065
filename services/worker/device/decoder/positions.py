"""What single attention layers do by position: chunks that they see, scales of their queries.

Both are worked out when a model is loaded and kept at its layers, for `attention` to apply: it has
the positions of all rows, which the layers themselves count from the start of a call.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_CHUNK, _SCALES = "symphony_chunk", "symphony_query_scales"


def note_positions(model: nn.Module) -> None:
    """Look at each attention layer, once."""
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            _note_chunk(module)
            _note_tuning(module)


def chunk_of(layer: nn.Module) -> int:
    """How many positions a chunk has that a query of this layer sees no key before; 0: all."""
    return int(getattr(layer, _CHUNK, 0))


def scaled(layer: nn.Module, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A layer's queries ``[T, H, D]``, scaled by position ``[T]`` where the layer does so."""
    scales: Callable[[torch.Tensor], torch.Tensor] | None = getattr(layer, _SCALES, None)
    if scales is None:
        return query
    return (query * scales(positions)[:, None, None]).to(query.dtype)


def _note_chunk(layer: Any) -> None:
    config = getattr(layer, "config", None)
    types = getattr(config, "layer_types", None) or []
    # Other parts of a model count their layers from the end, and are in no list of these.
    if 0 <= layer.layer_idx < len(types) and types[layer.layer_idx] == "chunked_attention":
        setattr(layer, _CHUNK, int(config.attention_chunk_size))  # type: ignore[union-attr]


def _note_tuning(layer: Any) -> None:
    """Temperature tuning of Llama 4: its layers without rotary embedding count positions from the
    start of a call."""
    if not getattr(layer, "attn_temperature_tuning", False) or getattr(layer, "use_rope", True):
        return
    floor, scale = float(layer.floor_scale), float(layer.attn_scale)

    def scales(positions: torch.Tensor) -> torch.Tensor:
        return torch.log1p(torch.floor((positions.float() + 1.0) / floor)) * scale + 1.0

    layer.attn_temperature_tuning = False
    setattr(layer, _SCALES, scales)
