"""Paged attention, plugged into transformers' models through its attention interface.

A model built with `ATTENTION` as its attention implementation calls `_attend` once a layer, which
finds in the running step where new keys and values go, and which history is still on its way.
"""

from typing import Any

import torch
from transformers import AttentionInterface

from kernels.paged_attention import AttentionShape, paged_attention, store_kv
from services.worker.device.positions.layers import chunk_of, scaled
from services.worker.device.step import LayerProbe, running_step
from shared.errors import SymphonyError

ATTENTION = "symphony_paged"


class UnsupportedModelError(SymphonyError):
    """The model's attention is of a kind that this engine does not compute."""

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
    of packed sequences; ``[1, T, H, D]`` out."""
    layer = module.layer_idx
    assert isinstance(layer, int), "transformers numbers its attention layers"
    if others.get("s_aux") is not None:
        raise UnsupportedModelError("attention sinks (gpt-oss) are not supported yet")
    step = running_step()
    if isinstance(step, LayerProbe):
        step.layers[layer] = (key.shape[1], key.shape[3])
        step.num_heads = max(step.num_heads, query.shape[1])
        if value.shape != key.shape:
            raise UnsupportedModelError("keys and values of different sizes are not supported")
        return query.transpose(1, 2).contiguous(), None
    new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    step.await_history(layer)  # first: the last page on its way may be one that is gone on in
    store_kv(new_keys, new_values, step.pool, step.slot_pages[layer], step.slot_offsets)
    shape = AttentionShape(
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        window=sliding_window or 0,
        softcap=softcap or 0.0,
        chunk=chunk_of(module),
    )
    rows = scaled(module, query[0].transpose(0, 1), step.positions)
    out = paged_attention(rows, step.pool, layer, step.batch, shape)
    return out[None], None


AttentionInterface.register(ATTENTION, _attend)
