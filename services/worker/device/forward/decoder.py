"""A decoder as a table of its layers, and its pass over the tokens of one step.

A layer is some nine launches: norm with residual; q, k and v; rotary embedding with the KV store;
attention; output; norm with residual; gate and up; activation; down.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kernels import pointwise as kernels
from kernels.paged_attention import AttentionShape, paged_attention
from kernels.pointwise import Heads, Norm, Slots
from services.worker.device.forward.rotary_tables import RotaryTable
from services.worker.device.base.step import StepContext


@dataclass(frozen=True, slots=True)
class Products:
    """Linear layers that share an input, computed by one module or by several.

    Attributes:
        modules: one for all, or one for each.
        sizes: outputs of each layer.
    """

    modules: tuple[nn.Module, ...]
    sizes: tuple[int, ...]

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Outputs ``[T, size]`` of ``[T, in]``; rows of one may lie apart."""
        if len(self.modules) == 1:
            out: torch.Tensor = self.modules[0](x)
            return out.split(self.sizes, -1) if len(self.sizes) > 1 else (out,)
        return tuple(module(x) for module in self.modules)


@dataclass(frozen=True, slots=True)
class Attention:
    """Attributes:
    num_heads, num_kv_heads, head_dim: of queries, of keys and values, of both.
    query_norm, key_norm: of a head each, or of all heads together if they are so wide.
    rotary: number of its table; None: nothing is turned.
    """

    qkv: Products
    output: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    shape: AttentionShape
    rotary: int | None
    query_norm: Norm | None = None
    key_norm: Norm | None = None

    def heads(self, x: torch.Tensor) -> tuple[Heads, Norm | None, Norm | None]:
        """What it attends with, and what norms are left to apply, head by head."""
        query, key, value = self.qkv(x)
        query, query_norm = self._of_all_heads(query, self.query_norm)
        key, key_norm = self._of_all_heads(key, self.key_norm)
        size, width = len(x), self.head_dim
        heads = Heads(
            query.view(size, self.num_heads, width),
            key.view(size, self.num_kv_heads, width),
            value.view(size, self.num_kv_heads, width),
        )
        return heads, query_norm, key_norm

    def _of_all_heads(self, x: torch.Tensor, norm: Norm | None) -> tuple[torch.Tensor, Norm | None]:
        if norm is None or len(norm.weight) == self.head_dim:
            return x, norm
        return kernels.rms_norm(x[None, :, None], *norm)[0, :, 0], None


@dataclass(frozen=True, slots=True)
class Mlp:
    """``down(activation(gate) * up)``."""

    gate_up: Products
    down: nn.Module
    activation: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x)
        out: torch.Tensor = self.down(kernels.gate(gate, up, self.activation))
        return out


@dataclass(frozen=True, slots=True)
class Layer:
    """Attributes:
    before_attention, after_attention, before_mlp, after_mlp: norms around both sublayers.
    """

    attention: Attention
    mlp: Mlp
    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None


@dataclass(frozen=True, slots=True)
class Decoder:
    """Attributes:
    embedding_scale: factor on embeddings.
    residual_scale: factor on what a sublayer adds.
    norm: behind the last layer.
    logit_scale: factor on logits.
    softcap: logits become ``softcap * tanh(logit / softcap)``; 0: off.
    """

    embedding: nn.Module
    rotaries: list[RotaryTable]
    layers: list[Layer]
    norm: Norm
    head: nn.Module
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0

    def __call__(self, step: StepContext, tokens: torch.Tensor, wanted: Any) -> torch.Tensor:
        """Logits ``[wanted, vocab]`` of a step's new tokens, whose KV is stored on the way.

        Args:
            tokens: int64 ``[T]``.
            wanted: numbers of the tokens whose logits are wanted; None: all.
        """
        stream: torch.Tensor = self.embedding(tokens)
        if self.embedding_scale != 1.0:
            stream = stream * self.embedding_scale
        turns = [table.at(step.positions, step.is_long) for table in self.rotaries]
        slot_pages = step.slot_pages.contiguous()
        scale = self.residual_scale
        first = self.layers[0].before_attention
        x = stream if first is None else kernels.rms_norm(stream, *first)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            attention = layer.attention
            heads, query_norm, key_norm = attention.heads(x)
            step.await_history(number)  # first: the last loading page may be one gone on in
            slots = Slots(slot_pages[number], step.slot_offsets)
            rotary = None if attention.rotary is None else turns[attention.rotary]
            query = kernels.rotate_store(heads, step.pool, slots, rotary, query_norm, key_norm)
            out = paged_attention(query, step.pool, number, step.batch, attention.shape)
            branch = attention.output(out.flatten(1))
            x = kernels.add_norm(stream, branch, scale, layer.after_attention, layer.before_mlp)
            branch = layer.mlp(x)
            after = self.norm if number == last else self.layers[number + 1].before_attention
            x = kernels.add_norm(stream, branch, scale, layer.after_mlp, after)
        return self._logits(x if wanted is None else x[wanted])

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(x)
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        if self.softcap:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits
