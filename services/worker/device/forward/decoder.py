"""A decoder as a table of its layers, and its pass over the tokens of one step.

A layer is some nine launches: norm with residual; q, k and v; rotary embedding with the KV store;
attention; output; norm with residual; gate and up; activation; down.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

import torch
from torch import nn

from kernels import pointwise as kernels
from kernels.paged_attention import AttentionShape, paged_attention
from kernels.pointwise import Heads, Norm, Slots
from services.worker.device.base.step import StepContext
from services.worker.device.forward.rotary_tables import RotaryTable
from services.worker.device.lora.additions import LoraAddition


@dataclass(slots=True)
class Linear:
    """A linear layer, or several in one, with what adapters add to it.

    Attributes:
        addition: None: nothing.
        sum_ranks: None: what is here is all of it.
    """

    module: nn.Module
    addition: LoraAddition | None = None
    sum_ranks: Callable[[torch.Tensor], None] | None = None

    def __call__(self, step: StepContext, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.module(x)
        if step.lora is not None and self.addition is not None:
            self.addition(step, x, y)
        if self.sum_ranks is not None:
            self.sum_ranks(y)
        return y


@dataclass(frozen=True, slots=True)
class Products:
    """Linear layers that share an input, computed together or one by one.

    Attributes:
        parts: one for all, or one for each.
        sizes: outputs of each layer.
    """

    parts: tuple[Linear, ...]
    sizes: tuple[int, ...]

    def __call__(self, step: StepContext, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Outputs ``[T, size]`` of ``[T, in]``; rows of one may lie apart."""
        if len(self.parts) == 1:
            out = self.parts[0](step, x)
            return out.split(self.sizes, -1) if len(self.sizes) > 1 else (out,)
        return tuple(part(step, x) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Attention:
    """Attributes:
    num_heads, num_kv_heads, head_dim: of queries, of keys and values, of both.
    query_norm, key_norm: of a head each, or of all heads together if they are so wide.
    rotary: number of its table; None: nothing is turned.
    """

    qkv: Products
    output: Linear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    shape: AttentionShape
    rotary: int | None
    query_norm: Norm | None = None
    key_norm: Norm | None = None

    def heads(self, step: StepContext, x: torch.Tensor) -> tuple[Heads, Norm | None, Norm | None]:
        """What it attends with, and what norms are left to apply, head by head."""
        query, key, value = self.qkv(step, x)
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
    down: Linear
    activation: int

    def __call__(self, step: StepContext, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(step, x)
        return self.down(step, kernels.gate(gate, up, self.activation))


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
    head: Linear
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0

    def __call__(
        self, step: StepContext, tokens: torch.Tensor, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Forward`."""
        stream, x = self.embed(tokens)
        stream, x = self.run(step, range(len(self.layers)), stream, x, wanted)
        return self.logits(step, x)

    def take_adapters(self, additions: Mapping[nn.Module, LoraAddition]) -> None:
        """See `Forward`."""
        for linear in self._linears():
            linear.addition = additions.get(linear.module)

    def sum_outputs(
        self, modules: Set[nn.Module], sum_ranks: Callable[[torch.Tensor], None]
    ) -> None:
        """See `Forward`."""
        for linear in self._linears():
            if linear.module in modules:
                linear.sum_ranks = sum_ranks

    def embed(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream ``[T, hidden]`` of tokens ``[T]``, and the first layer's input."""
        stream: torch.Tensor = self.embedding(tokens)
        if self.embedding_scale != 1.0:
            stream = stream * self.embedding_scale
        first = self.layers[0].before_attention
        return stream, stream if first is None else kernels.rms_norm(stream, *first)

    def run(
        self,
        step: StepContext,
        numbers: range,
        stream: torch.Tensor,
        x: torch.Tensor,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Some layers that follow each other.

        Args:
            stream: changed in place.
            x: input of the first of them.
            wanted: see `Forward`. What is behind the last layer's attention is computed for these
                tokens alone where no adapter adds to it.

        Returns:
            The stream, and the input of the layer behind them, or of the head: of wanted tokens.
        """
        rotaries = [table.at(step.positions, step.is_long) for table in self.rotaries]
        slot_pages = step.slot_pages.contiguous()
        scale, last = self.residual_scale, len(self.layers) - 1
        for number in numbers:
            layer = self.layers[number]
            attention = layer.attention
            heads, query_norm, key_norm = attention.heads(step, x)
            step.await_history(number)  # first: the last loading page may be one gone on in
            slots = Slots(slot_pages[number], step.slot_offsets)
            rotary = None if attention.rotary is None else rotaries[attention.rotary]
            query = kernels.rotate_store(heads, step.pool, slots, rotary, query_norm, key_norm)
            out = paged_attention(query, step.pool, number, step.batch, attention.shape)
            out = out.flatten(1)
            after = self.norm if number == last else self.layers[number + 1].before_attention
            picked = wanted if number == last else None
            if picked is not None and step.lora is None:
                out, stream, picked = out[picked], stream[picked], None
            branch = attention.output(step, out)
            x = kernels.add_norm(stream, branch, scale, layer.after_attention, layer.before_mlp)
            x = kernels.add_norm(stream, layer.mlp(step, x), scale, layer.after_mlp, after)
            if picked is not None:
                x = x[picked]
        return stream, x

    def logits(self, step: StepContext, x: torch.Tensor) -> torch.Tensor:
        """Logits ``[W, vocab]`` of what the last layer gives for wanted tokens."""
        logits = self.head(step, x)
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        if self.softcap:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    def _linears(self) -> Iterator[Linear]:
        for layer in self.layers:
            yield from layer.attention.qkv.parts
            yield layer.attention.output
            yield from layer.mlp.gate_up.parts
            yield layer.mlp.down
        yield self.head
