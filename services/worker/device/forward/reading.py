"""Reading a decoder from a loaded module, by the names of its parts, and trying what was read."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernels.paged_attention import RaggedBatch
from kernels.pointwise import Norm
from services.worker.device.base.step import StepContext
from services.worker.device.decoder.loaded_model import Forward, LoadedModel
from services.worker.device.forward.decoder import Attention, Decoder, Layer, Linear, Mlp, Products
from services.worker.device.forward.observing import Observed, observe
from services.worker.device.layers.gated import GatedMlp, activation_of
from services.worker.device.layers.merged import Sibling
from services.worker.device.layers.norms import FastRmsNorm
from services.worker.device.layers.rotary import sees_positions

log = logging.getLogger(__name__)

TRIED_TOKENS = 7
AGREES = {torch.float32: 1e-4}  # how far logits may be away, as a share of their norm
AGREES_ROUNDED = 0.2

NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


class _Unknown(Exception):
    """A part that is none of those that are known."""


def use_own_forward(loaded: LoadedModel) -> None:
    """Let a model compute its steps by a decoder that was read from its module, if it is of parts
    that are known.

    Args:
        loaded: its layers replaced by fast ones (`layers.speed_up`); none may be replaced later.
    """
    try:
        observed = observe(loaded.module, loaded.num_layers, loaded.max_model_len)
        if observed is None:
            return
        decoder = _read(loaded.module, observed)
        away = _away(loaded.forward, decoder, loaded)
    except Exception as error:  # of a stranger's parts, which only have these names
        log.info("transformers' own forward", extra={"why": str(error)})
        return
    if not away <= AGREES.get(loaded.dtype, AGREES_ROUNDED):
        log.warning("our forward disagrees with transformers': not used", extra={"away": away})
        return
    loaded.forward = decoder


def _read(model: Any, observed: Observed) -> Decoder:
    config, inner = model.config.get_text_config(), observed.inner
    _only(inner, {"embed_tokens", "layers", "norm", "rotary_emb", "rotary_emb_local"})
    softcap = getattr(config, "final_logit_softcapping", None)
    return Decoder(
        embedding=inner.embed_tokens,
        rotaries=observed.rotaries,
        layers=[_layer(layer, number, observed) for number, layer in enumerate(inner.layers)],
        norm=_norm(inner.norm),
        head=Linear(model.get_output_embeddings()),
        embedding_scale=observed.embedding_scale,
        residual_scale=float(getattr(config, "residual_multiplier", 1.0)),
        logit_scale=1.0 / float(getattr(config, "logits_scaling", 1.0)),
        softcap=float(softcap or 0.0),
    )


def _layer(layer: Any, number: int, observed: Observed) -> Layer:
    _only(layer, {"self_attn", "mlp", *NORMS})
    names = {name for name in NORMS if hasattr(layer, name)}
    places = {
        frozenset(NORMS[:2]): (0, None, 1, None),  # before each sublayer
        frozenset(NORMS): (0, 1, 2, 3),  # on both sides
        frozenset({NORMS[1], NORMS[3]}): (None, 1, None, 3),  # behind each
    }.get(frozenset(names))
    if places is None:
        raise _Unknown(f"norms {sorted(names)}")
    norms = [None if at is None else _norm(getattr(layer, NORMS[at])) for at in places]
    return Layer(_attention(layer.self_attn, number, observed), _mlp(layer.mlp), *norms)


def _attention(module: Any, number: int, observed: Observed) -> Attention:
    _only(module, {"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm"})
    if sees_positions(module):
        raise _Unknown(f"{type(module).__name__} goes by positions itself")
    num_kv_heads, width = observed.kv_layouts[number]
    if hasattr(module, "qkv_proj"):
        total = module.qkv_proj.out_features
        sizes = [total - 2 * num_kv_heads * width, *[num_kv_heads * width] * 2]
        qkv = Products((Linear(module.qkv_proj),), tuple(sizes))
    else:
        qkv = _products(module, ("q_proj", "k_proj", "v_proj"))
    if qkv.sizes[0] != module.o_proj.in_features:
        raise _Unknown(f"{type(module).__name__} with more than queries in their product")
    return Attention(
        qkv=qkv,
        output=Linear(module.o_proj),
        num_heads=qkv.sizes[0] // width,
        num_kv_heads=num_kv_heads,
        head_dim=width,
        shape=observed.shapes[number],
        rotary=observed.rotary_of[number],
        query_norm=_norm(module.q_norm) if hasattr(module, "q_norm") else None,
        key_norm=_norm(module.k_norm) if hasattr(module, "k_norm") else None,
    )


def _mlp(module: Any) -> Mlp:
    if isinstance(module, GatedMlp):
        return Mlp(
            _products(module, ("gate_proj", "up_proj")), Linear(module.down_proj), module.activation
        )
    _only(module, {"gate_up_proj", "down_proj"})
    activation = activation_of(getattr(module, "activation_fn", None))
    if activation is None:
        raise _Unknown(f"an MLP of {sorted(name for name, _ in module.named_children())}")
    width = module.gate_up_proj.out_features // 2
    return Mlp(
        Products((Linear(module.gate_up_proj),), (width, width)),
        Linear(module.down_proj),
        activation,
    )


def _products(parent: Any, names: Sequence[str]) -> Products:
    parts = [getattr(parent, name) for name in names]
    sizes = tuple(part.out_features for part in parts)
    merged = [part.merged if isinstance(part, Sibling) else None for part in parts]
    if merged[0] is not None and all(each is merged[0] for each in merged):
        return Products((Linear(parts[0].product),), sizes)
    if any(each is not None for each in merged):
        raise _Unknown("layers that share a product with others")
    return Products(tuple(Linear(part) for part in parts), sizes)


def _norm(module: nn.Module) -> Norm:
    if not isinstance(module, FastRmsNorm):
        raise _Unknown(f"a norm of another kind ({type(module).__name__})")
    return Norm(module.weight, module.eps, module.offset)


def _only(module: nn.Module, names: set[str]) -> None:
    """Raises:
    _Unknown: it has parts with weights of other names, or numbers of its own.
    """
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if own:
        raise _Unknown(f"{type(module).__name__} with {own[0][0]}")
    for name, child in module.named_children():
        if name not in names and next(child.parameters(), None) is not None:
            raise _Unknown(f"{type(module).__name__} with {name}")


def _away(theirs: Forward, ours: Forward, loaded: LoadedModel) -> float:
    """How far logits of a short prompt are from transformers'. One pass of each: on a CPU a pass
    reads all weights. (`verify` tries small models of the same config in every way.)"""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(loaded.vocab_size, (TRIED_TOKENS,), generator=generator)
    tokens = tokens.to(loaded.device)

    def logits(forward: Forward) -> torch.Tensor:
        return forward(_step(loaded.make_pool(loaded.num_layers)), tokens, None).float()

    with torch.inference_mode():
        want, got = logits(theirs), logits(ours)
    return float((got - want).norm() / want.norm()) if want.isfinite().all() else math.inf


def _step(pool: torch.Tensor) -> StepContext:
    """A prompt that has page *l* of layer *l*."""
    device, num_layers = pool.device, len(pool)
    positions = torch.arange(TRIED_TOKENS, device=device)
    pages = torch.arange(num_layers, dtype=torch.int32, device=device)
    return StepContext(
        pool=pool,
        batch=RaggedBatch([0, TRIED_TOKENS], [TRIED_TOKENS], [0], pages[:, None, None].cpu()),
        slot_pages=pages[:, None].expand(num_layers, TRIED_TOKENS).contiguous(),
        slot_offsets=positions.int(),
        positions=positions,
    )
