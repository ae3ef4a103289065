"""Which part of a decoder's weights is a rank's: Megatron's split.

Of q, k and v, and of gate and up, a rank has some of the outputs: whole heads of its own. Of o and
down it has the inputs that those give, so that the ranks' outputs are terms of one sum. All else is
replicated. Of an adapter, the side that meets the split is split, the other one replicated: A's
inputs at o and down, B's outputs elsewhere. So what adapters add is summed with what they add to.

Source: Megatron-LM, section 3; Punica, section 7.2.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from services.worker.device.base.executor import ModelInfo
from services.worker.device.lora.sites import layers_path
from shared.errors import ConfigError
from shared.wire.messages import LoraCard, LoraTarget

BY_OUTPUTS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)
BY_INPUTS = ("self_attn.o_proj", "mlp.down_proj")  # summed over the ranks


class Shard(NamedTuple):
    """One of ``num_ranks`` equal parts."""

    rank: int
    num_ranks: int

    def part(self, size: int) -> slice:
        """This part of so many, which the ranks divide."""
        width = size // self.num_ranks
        return slice(self.rank * width, (self.rank + 1) * width)


def split_module(module: Any, shard: Shard) -> None:
    """Leave a rank's weights in a transformers decoder.

    Raises:
        ConfigError: its layers have other parts than those that are split, or the number of ranks
            does not divide its heads or its MLP; says which.
    """
    config = module.config.get_text_config()
    path = layers_path(module, config.num_hidden_layers)
    if path is None:
        raise _refusal(shard, "it has no list of decoder layers")
    for number, layer in enumerate(module.get_submodule(path)):
        try:
            _split_layer(layer, config, shard)
        except ValueError as error:
            raise _refusal(shard, f"layer {number}: {error}") from None


def summed_modules(module: Any, num_layers: int) -> set[nn.Module]:
    """Those of a split decoder whose outputs are to be summed over the ranks."""
    layers = module.get_submodule(layers_path(module, num_layers))
    return {layer.get_submodule(name) for layer in layers for name in BY_INPUTS}


def whole_card(card: LoraCard, num_ranks: int) -> LoraCard:
    """What adapters a model takes, from what a rank takes of them."""

    def whole(target: LoraTarget) -> LoraTarget:
        num_in = target.num_in * (num_ranks if target.name in BY_INPUTS else 1)
        num_out = target.num_out * (num_ranks if target.name in BY_OUTPUTS else 1)
        return replace(target, num_in=num_in, num_out=num_out)

    targets = [whole(each) for each in card.targets]
    return replace(card, targets=targets, page_bytes=card.page_bytes * num_ranks)


def of_all_ranks(info: ModelInfo, num_ranks: int) -> ModelInfo:
    """What is served of a model, from what a rank has of it."""
    if num_ranks == 1:
        return info
    return replace(
        info,
        page_bytes=info.page_bytes * num_ranks,
        stored_page_bytes=info.stored_page_bytes * num_ranks,
        lora=None if info.lora is None else whole_card(info.lora, num_ranks),
        image_card=info.lora,
    )


def _split_layer(layer: nn.Module, config: Any, shard: Shard) -> None:
    """Raises:
    ValueError: it cannot be split so.
    """
    known = {name: _linear(layer, name) for name in (*BY_OUTPUTS, *BY_INPUTS)}
    query, key = (known[f"self_attn.{name}"].out_features for name in ("q_proj", "k_proj"))
    width = query // config.num_attention_heads
    _check_others(layer, known, width)
    sizes = {
        "heads": config.num_attention_heads,
        "KV heads": key // width,
        "MLP units": known["mlp.up_proj"].out_features,
    }
    for what, size in sizes.items():
        if size % shard.num_ranks:
            raise ValueError(f"{size} {what} cannot be divided by {shard.num_ranks}")
    for name, linear in known.items():
        weight: torch.Tensor = linear.weight
        bias: torch.Tensor | None = linear.bias
        if name in BY_OUTPUTS:
            part = shard.part(linear.out_features)
            weight, bias = weight[part], None if bias is None else bias[part]
        else:
            weight = weight[:, shard.part(linear.in_features)]
            bias = bias if shard.rank == 0 else None  # it is added once
        linear.out_features, linear.in_features = weight.shape
        linear.weight = _own(weight)
        linear.register_parameter("bias", None if bias is None else _own(bias))


def _linear(layer: nn.Module, name: str) -> nn.Linear:
    try:
        found = layer.get_submodule(name)
    except AttributeError:
        raise ValueError(f"there is no {name}") from None
    if type(found) is not nn.Linear:
        raise ValueError(f"{name} is no linear layer ({type(found).__name__})")
    return found


def _check_others(layer: nn.Module, known: dict[str, nn.Linear], head_dim: int) -> None:
    """See that what stays whole may: norms, of the residual stream or of single heads."""
    split = {f"{name}.{part}" for name in known for part in ("weight", "bias")}
    for name, parameter in layer.named_parameters():
        if name in split:
            continue
        is_of_heads = name.startswith(("self_attn.", "mlp."))
        if parameter.dim() != 1 or (is_of_heads and len(parameter) != head_dim):
            raise ValueError(f"{name} {list(parameter.shape)} is nothing that is split or kept")


def _own(weight: torch.Tensor) -> nn.Parameter:
    """A copy: the whole one is freed."""
    return nn.Parameter(weight.detach().clone(), requires_grad=False)


def _refusal(shard: Shard, why: str) -> ConfigError:
    return ConfigError(f"SYMPHONY_TENSOR_PARALLEL={shard.num_ranks}: {why}")
