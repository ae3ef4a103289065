"""What one pass of a module shows: how its layers attend, and what they are handed."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from kernels import pointwise as kernels
from kernels.paged_attention import AttentionShape
from services.worker.device.base.step import LayerProbe, running
from services.worker.device.decoder.attention import has_query_scales
from services.worker.device.decoder.rotary import RowwiseRotary, types_of
from services.worker.device.forward.rotary_tables import Embed, RotaryTable, fits
from services.worker.device.layers.rotary import (
    Rotate,
    is_plain_rotary,
    rotary_users,
    use_rotary,
)

POSITIONS = (0, 1, 2, 5, 11)
TURNS_AGREE = 2**-6  # of bf16: another order of a head's elements is away by about 1


@dataclass(frozen=True, slots=True)
class Observed:
    """Attributes:
    inner: the module that holds the layers.
    kv_layouts: (KV heads, head dim) of each layer.
    rotary_of: of each layer the number of its table; None: it turns nothing.
    """

    inner: Any
    kv_layouts: dict[int, tuple[int, int]]
    shapes: dict[int, AttentionShape]
    rotaries: list[RotaryTable]
    rotary_of: list[int | None]
    embedding_scale: float


@dataclass(slots=True)
class _Handed:
    """Stands in for a layer's rotary function, and keeps what it is given.

    Attributes:
        original: that function, if ours was not held against it yet.
    """

    original: Rotate | None
    given: tuple[torch.Tensor, torch.Tensor] | None = None
    is_known: bool = True

    def __call__(self, *args: Any, **named: Any) -> Any:
        rounded = args
        if len(args) == 4:  # some models keep these in float32
            rounded = (*args[:2], *(each.to(args[0].dtype) for each in args[2:]))
        if named or not is_plain_rotary(rounded):
            self.is_known = False
            return args[0], args[1]
        self.given = args[2], args[3]
        turned = kernels.rotate(*rounded)
        if self.original is not None:
            wanted = self.original(args[0].clone(), args[1].clone(), *args[2:])
            self.is_known &= all(map(_is_near, turned, wanted))
        return turned


def observe(model: Any, num_layers: int, num_positions: int) -> Observed | None:
    """Run a module once and watch; None: it is not built of what is known here."""
    inner = _inner(model, num_layers)
    if inner is None:
        return None
    attentions = [layer.self_attn for layer in inner.layers]
    if any(has_query_scales(each) for each in attentions):
        return None
    originals = {id(each): turn for turn, users in rotary_users(inner).items() for each in users}
    handed = [_Handed(originals.get(id(each))) for each in attentions]
    before = [vars(each).get("forward") for each in attentions]
    for attention, hand, forward in zip(attentions, handed, before, strict=True):
        if forward is not None or hand.original is not None:
            use_rotary(attention, hand)
    embedded: list[torch.Tensor] = []
    hook = inner.layers[0].register_forward_pre_hook(
        lambda _, args, named: embedded.append(args[0] if args else named["hidden_states"]),
        with_kwargs=True,
    )
    probe, positions = LayerProbe(), torch.tensor([POSITIONS], device=model.device)
    try:
        with torch.inference_mode(), running(probe):
            model(positions, position_ids=positions, use_cache=False)
    finally:
        hook.remove()
        for attention, forward in zip(attentions, before, strict=True):
            vars(attention).pop("forward", None)
            if forward is not None:
                attention.forward = forward
    if not all(hand.is_known for hand in handed):
        return None
    scale = _scale(inner.embed_tokens, positions[0], embedded[0][0])
    found = _tables(inner, handed, positions, num_positions)
    if scale is None or found is None:
        return None
    rotaries, rotary_of = found
    return Observed(inner, probe.layers, probe.shapes, rotaries, rotary_of, scale)


def _is_near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    away = (ours.float() - theirs.float()).norm() / theirs.float().norm()
    return bool(away <= TURNS_AGREE)


def _inner(model: nn.Module, num_layers: int) -> Any:
    """The outermost module that holds as many layers and an embedding."""
    for module in model.modules():
        layers = getattr(module, "layers", None)
        if not isinstance(layers, nn.ModuleList) or len(layers) != num_layers:
            continue
        if hasattr(module, "embed_tokens") and hasattr(module, "norm"):
            return module if all(hasattr(layer, "self_attn") for layer in layers) else None
    return None


def _tables(
    inner: Any, handed: list[_Handed], positions: torch.Tensor, num_positions: int
) -> tuple[list[RotaryTable], list[int | None]] | None:
    """Tables of what the layers were handed, and which of them has which; None: it came from
    elsewhere, or there are too many positions."""
    dtype = inner.embed_tokens.weight.dtype
    shorts: list[Embed] = []
    longs: list[Embed | None] = []
    for module in inner.children():
        short, long = module, None
        if isinstance(module, RowwiseRotary):
            short, long = module.short, module.long
        for layer_type in types_of(short):
            shorts.append(partial(_embed, short, layer_type, dtype))
            longs.append(None if long is None else partial(_embed, long, layer_type, dtype))
    numbers: dict[int, int] = {}
    tables: list[RotaryTable] = []
    rotary_of: list[int | None] = []
    for hand in handed:
        if hand.given is None:
            rotary_of.append(None)
            continue
        same = (each for each, short in enumerate(shorts) if _gives(short, positions, hand.given))
        at = next(same, None)
        if at is None or not fits(num_positions, hand.given[0]):
            return None
        if at not in numbers:
            numbers[at] = len(tables)
            with torch.inference_mode():
                tables.append(RotaryTable(shorts[at], longs[at], num_positions, positions.device))
        rotary_of.append(numbers[at])
    return tables, rotary_of


def _gives(embed: Embed, positions: torch.Tensor, given: tuple[torch.Tensor, torch.Tensor]) -> bool:
    with torch.inference_mode():
        own = embed(positions)
    return all(torch.equal(one, other) for one, other in zip(own, given, strict=True))


def _embed(
    module: Any, layer_type: str | None, dtype: torch.dtype, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    named = {} if layer_type is None else {"layer_type": layer_type}
    like = torch.zeros((1, 1, 1), dtype=dtype, device=positions.device)
    cos, sin = module(like, positions, **named)
    return cos, sin


def _scale(embedding: nn.Module, tokens: torch.Tensor, seen: torch.Tensor) -> float | None:
    """The factor on embeddings that gives what the first layer got; None: no factor does."""
    with torch.inference_mode():
        own = embedding(tokens)
    if torch.equal(own, seen):
        return 1.0
    wide = own.double()
    scale = float((wide * seen.double()).sum() / (wide * wide).sum())
    rounded = float(torch.tensor(scale, dtype=own.dtype))
    near = [rounded, scale, round(scale, 6)]
    fitting = [each for each in near if torch.allclose(own * each, seen, 1e-6, 0.0)]
    return fitting[0] if fitting else None
