"""Paged attention, plugged into transformers' models through its attention interface.

A model built with `ATTENTION` as its attention implementation calls `_attend` once a layer. Its
keyword `step` carries everything about the batch at hand: where new keys and values go, and which
history is still on its way.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from kernels.paged_attention import AttentionShape, RaggedBatch, paged_attention
from services.worker.engine.gate import PageGate
from shared.errors import SymphonyError

ATTENTION = "symphony_paged"
STALL_TIMEOUT_NS = 1_000_000_000  # of one layer in one pass; then the row is recomputed


class UnsupportedModelError(SymphonyError):
    """The model's attention is of a kind that this engine does not compute."""

    code = "unsupported_model"


@dataclass(slots=True)
class LayerProbe:
    """Stands in for a step to learn a model's KV layout: (KV heads, head dim) of each layer."""

    layers: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class StepContext:
    """One step, as the attention of each layer sees it.

    Attributes:
        keys, values: the pool's halves, ``[num_pages, num_kv_heads, block_tokens, head_dim]``.
        positions: ``[1, num_tokens]`` of each new token in its turn.
        slot_pages: ``[num_layers, num_tokens]`` page that takes each new token.
        slot_offsets: ``[num_tokens]`` place in that page.
        awaited: by row, for each layer, pages that may still be loading.
        failed: rows whose history did not come.
    """

    pool: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    batch: RaggedBatch
    positions: torch.Tensor
    slot_pages: torch.Tensor
    slot_offsets: torch.Tensor
    awaited: dict[int, list[list[int]]]
    gate: PageGate
    stall_ns: list[int]
    failed: set[int] = field(default_factory=set)

    def await_history(self, layer: int) -> None:
        """Wait until this layer's history is in the pool, for every row that brings some up."""
        if not self.awaited:
            return
        started_ns = time.monotonic_ns()
        for row, pages in self.awaited.items():
            if row not in self.failed and not self.gate.wait(pages[layer], STALL_TIMEOUT_NS):
                self.failed.add(row)
        self.stall_ns[layer] += time.monotonic_ns() - started_ns


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
    step: StepContext | LayerProbe | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer: query ``[1, H, T, D]``, key and value ``[1, Hkv, T, D]`` in, one row
    of packed sequences; ``[1, T, H, D]`` out."""
    layer = module.layer_idx
    assert isinstance(layer, int), "transformers numbers its attention layers"
    if others.get("s_aux") is not None:
        raise UnsupportedModelError("attention sinks (gpt-oss) are not supported yet")
    if isinstance(step, LayerProbe):
        step.layers[layer] = (key.shape[1], key.shape[3])
        if value.shape != key.shape:
            raise UnsupportedModelError("keys and values of different sizes are not supported")
        return query.transpose(1, 2).contiguous(), None
    assert step is not None, "the model was called outside a step"
    new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    pages = step.slot_pages[layer]
    step.keys[pages, :, step.slot_offsets] = new_keys
    step.values[pages, :, step.slot_offsets] = new_values
    step.await_history(layer)
    shape = AttentionShape(
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        window=sliding_window or 0,
        softcap=softcap or 0.0,
    )
    rows = query[0].transpose(0, 1)
    out = paged_attention(rows, step.pool, layer, step.batch, shape)
    return out[None], None


AttentionInterface.register(ATTENTION, _attend)
