"""Paged attention, plugged into transformers' models through its attention interface.

A model built with `ATTENTION` as its attention implementation calls `_attend` once a layer, which
finds in the running step where new keys and values go, and which history is still loading.
Whatever else a model asks of attention, this engine does not compute, and refuses.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from kernels.paged_attention import AttentionShape, paged_attention, store_kv
from services.worker.device.base.step import LayerProbe, running_step
from shared.errors import SymphonyError

# What single layers do by position, worked out when a model is loaded and kept at its layers: a
# step has the positions of all rows, which the layers themselves count from the start of a call.
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


def has_query_scales(layer: nn.Module) -> bool:
    """Whether `scaled` changes a layer's queries."""
    return hasattr(layer, _SCALES)


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


ATTENTION = "symphony_paged"

# Arguments that change nothing about the result, whatever they are: layers pass on what they were
# called with, and `_attend` takes positions from the step.
_IRRELEVANT = frozenset(
    {
        "position_ids",
        "cache_position",
        "use_cache",
        "logits_to_keep",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
    }
)


class UnsupportedModelError(SymphonyError):
    """The model computes something that this engine does not compute, or not in the same way."""

    code = "unsupported_model"


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer: query ``[1, H, T, D]``, key and value ``[1, Hkv, T, D]`` in, one row
    of packed sequences; ``[1, T, H, D]`` out.

    Raises:
        UnsupportedModelError: the layer asks for more than causal attention, or has asked before
            in this pass.
    """
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModelError(f"{type(module).__name__} is an attention without a layer")
    _check_arguments(layer, attention_mask, dropout, others)
    step = running_step()
    if layer in step.attended:
        raise UnsupportedModelError(f"layer {layer} calls attention twice in one pass")
    step.attended.add(layer)
    if key.shape[:1] + key.shape[2:3] != query.shape[:1] + query.shape[2:3]:
        raise UnsupportedModelError(
            f"layer {layer} attends with {query.shape[2]} queries to {key.shape[2]} keys of its own"
        )
    shape = AttentionShape(
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        window=sliding_window or 0,
        softcap=softcap or 0.0,
        chunk=chunk_of(module),
    )
    if isinstance(step, LayerProbe):
        step.layers[layer], step.shapes[layer] = (key.shape[1], key.shape[3]), shape
        step.num_heads = max(step.num_heads, query.shape[1])
        if value.shape != key.shape:
            raise UnsupportedModelError("keys and values of different sizes are not supported")
        return query.transpose(1, 2).contiguous(), None
    new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    step.await_history(layer)  # first: the last loading page may be one that is gone on in
    store_kv(new_keys, new_values, step.pool, step.slot_pages[layer], step.slot_offsets)
    rows = scaled(module, query[0].transpose(0, 1), step.positions)
    out = paged_attention(rows, step.pool, layer, step.batch, shape)
    return out[None], None


def _check_arguments(
    layer: int, mask: torch.Tensor | None, dropout: float, others: dict[str, Any]
) -> None:
    if mask is not None:
        raise UnsupportedModelError(f"layer {layer} brings its own attention mask")
    if dropout:
        raise UnsupportedModelError(f"layer {layer} asks for dropout={dropout} in attention")
    for name, value in others.items():
        if value is None or name in _IRRELEVANT or (name == "is_causal" and value is True):
            continue
        if name == "s_aux":
            raise UnsupportedModelError(f"layer {layer} has attention sinks (s_aux)")
        shown = f"={value}" if isinstance(value, bool | int | float | str) else ""
        raise UnsupportedModelError(f"layer {layer} passes {name}{shown} to attention")


AttentionInterface.register(ATTENTION, _attend)
