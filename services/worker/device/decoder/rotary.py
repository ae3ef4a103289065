"""Rotary embeddings that choose their frequencies by the length of a sequence.

transformers chooses them by the largest position in a call, and keeps its choice in the module. For
`longrope` they are the short or the long ones, and here that goes by row: a sequence has the short
ones while it has at most `original_max_position_embeddings` tokens, and the long ones for all its
positions beyond. For `dynamic` they change beyond the positions that a model is served for, so they
are constant here. No call changes a module.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from services.worker.device.base.step import StepContext, running_step
from services.worker.device.decoder.attention import UnsupportedModelError

TRIED = 64  # positions at which a constant embedding is held against the one it replaces


class RowwiseRotary(nn.Module):
    """Frequencies of each token by the row that it is in."""

    def __init__(self, short: nn.Module, long: nn.Module) -> None:
        super().__init__()
        self.short, self.long = short, long

    def forward(self, *args: Any, **named: Any) -> Any:
        """What the replaced one gives: tensors ``[1, T, ...]``, for each of T tokens."""
        step = running_step()
        is_long = step.is_long if isinstance(step, StepContext) else None
        short = self.short(*args, **named)
        if is_long is None:
            return short
        return _chosen(is_long, self.long(*args, **named), short)


def freeze_rotaries(model: nn.Module, max_model_len: int) -> int:
    """Replace a decoder's rotary embeddings that a call can change.

    Args:
        max_model_len: positions that it is served for.

    Returns:
        Tokens of the longest sequence that has short frequencies; 0: all sequences have the same.

    Raises:
        UnsupportedModelError: they are of a form that is not known, or several such lengths.
    """
    made: dict[nn.Module, nn.Module] = {}  # a module may stand at several places
    lengths: set[int] = set()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child not in made and _is_changing(child):
                made[child], length = _frozen(child, max_model_len)
                lengths.add(length)
            if child in made:
                setattr(parent, name, made[child])
    lengths.discard(0)
    if len(lengths) > 1:
        raise UnsupportedModelError(f"longrope with several original lengths: {sorted(lengths)}")
    return lengths.pop() if lengths else 0


def _is_changing(module: nn.Module) -> bool:
    return any("dynamic" in each or each == "longrope" for each in types_of(module).values())


def types_of(module: nn.Module) -> dict[str | None, str]:
    """How a module gets its frequencies, by the type of layer that they are for; None: any."""
    rope_type = getattr(module, "rope_type", None)
    if isinstance(rope_type, str):
        return {None: rope_type}
    if isinstance(rope_type, dict):
        return {name: each for name, each in rope_type.items() if isinstance(each, str)}
    return {}


def _frozen(rotary: nn.Module, max_model_len: int) -> tuple[nn.Module, int]:
    """A module in its place, and the longest sequence that has short frequencies, or 0."""
    lengths = {
        min(_original_length(rotary, layer_type), max_model_len)
        for layer_type, rope_type in types_of(rotary).items()
        if rope_type == "longrope"
    }
    if len(lengths) > 1:
        raise UnsupportedModelError(f"longrope with several original lengths: {sorted(lengths)}")
    length = lengths.pop() if lengths else max_model_len
    short = _constant(rotary, length)
    if length == max_model_len:
        return short, 0
    long = _constant(rotary, max_model_len)
    if _is_same(short, long, torch.arange(max_model_len - 1, -1, -max(max_model_len // TRIED, 1))):
        return short, 0
    return RowwiseRotary(short, long), length


def _original_length(rotary: nn.Module, layer_type: str | None) -> int:
    parameters: Any = rotary.config.rope_parameters  # type: ignore[union-attr]
    own = parameters if layer_type is None else parameters[layer_type]
    return int(own["original_max_position_embeddings"])


def _constant(rotary: nn.Module, length: int) -> nn.Module:
    """One that gives for any positions what `rotary` gives for those of a sequence of `length`."""
    original, constant = deepcopy(rotary), deepcopy(rotary)
    scales: dict[str | None, float] = {}
    for layer_type in types_of(rotary):
        given = _call(constant, torch.tensor([0, length - 1]), layer_type)
        scales[layer_type] = float(_tensors(given)[0][0, 0, 0].real)  # the cosine of 0, scaled
    _stop_changing(constant, scales)
    positions = torch.arange(length - 1, -1, -max(length // TRIED, 1))
    if not _is_same(constant, original, positions):
        kinds = ", ".join(sorted(set(types_of(rotary).values())))
        raise UnsupportedModelError(f"a rotary embedding of unknown form ({kinds})")
    return constant


def _stop_changing(constant: Any, scales: dict[str | None, float]) -> None:
    """Let a module use what the last call left in it."""
    types = types_of(constant)
    constant.rope_type = "default" if None in types else dict.fromkeys(types, "default")
    if None not in types:
        return
    # Some ask for frequencies in each call, and scale by what the config says for a length.
    parameters = dict(constant.config.rope_parameters)
    if callable(init := getattr(constant, "rope_init_fn", None)):
        frequencies, _ = init(constant.config)
        scale = scales[None]
        constant.rope_init_fn = lambda *_, **__: (frequencies, scale)
    constant.config.rope_parameters = {**parameters, "rope_type": "default"}


def _is_same(one: nn.Module, other: nn.Module, positions: torch.Tensor) -> bool:
    """Whether both give the same at these positions, of which the first is the largest."""
    return all(
        torch.equal(mine, theirs)
        for layer_type in types_of(one)
        for mine, theirs in zip(
            _tensors(_call(one, positions, layer_type)),
            _tensors(_call(other, positions, layer_type)),
            strict=True,
        )
    )


def _call(rotary: nn.Module, positions: torch.Tensor, layer_type: str | None) -> Any:
    device = next((each.device for each in rotary.buffers()), torch.device("cpu"))
    named = {} if layer_type is None else {"layer_type": layer_type}
    with torch.inference_mode():
        return rotary(torch.zeros(1, 1, 1, device=device), positions.to(device)[None], **named)


def _tensors(given: Any) -> tuple[torch.Tensor, ...]:
    return (given,) if isinstance(given, torch.Tensor) else tuple(given)


def _chosen(is_long: torch.Tensor, long: Any, short: Any) -> Any:
    if isinstance(short, torch.Tensor):
        return torch.where(is_long[None, :, None], long, short)
    return tuple(_chosen(is_long, *pair) for pair in zip(long, short, strict=True))
