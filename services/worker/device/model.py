"""Loading a transformers decoder: weights, KV layout, limits, fingerprint."""

import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from kernels.paged_attention import can_be_invariant
from services.worker.core.engine_limits import StoredDtype
from services.worker.device.copying.int8_pages import VERSION as INT8_VERSION
from services.worker.device.decoder.attention import ATTENTION, UnsupportedModelError
from services.worker.device.decoder.loaded_model import LoadedModel, prepare_model
from services.worker.device.forward import use_own_forward
from services.worker.device.layers import Mode, speed_up, variant_products
from services.worker.device.verify import verify_source
from services.worker.models.digest import OnBytes, WeightsDigest
from services.worker.models.generation import generation_config
from services.worker.models.weights import load_weights
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError

log = logging.getLogger(__name__)

KV_LAYOUT_VERSION = 2  # 1 held KV of models whose positions went by the step
INVARIANT_VERSION = 1  # of how sums are made, see `layers.invariant`


def load_model(
    source: str,
    device: str,
    dtype: str,
    layers: Mode = "fast",
    stored_dtype: StoredDtype = "model",
    split: Callable[[Any], None] | None = None,
    on_bytes: OnBytes = lambda _: None,
) -> LoadedModel:
    """Load from a folder or a hub id.

    Args:
        dtype: ``auto`` (the checkpoint's), ``float32``, ``bfloat16`` or ``float16``.
        layers: ``fast`` replaces what can be computed faster; ``plain`` leaves every layer as
            transformers makes it; ``invariant`` computes each token alike whatever else is in its
            step.
        stored_dtype: of its KV outside of the pool: `model`, as it computes, or `int8`.
        split: leaves the part of a module that is to be computed here.
        on_bytes: see `WeightsDigest`.

    Raises:
        ConfigError: no such model, or it is not readable, or a weight is missing or left over.
        UnsupportedModelError: small models of its config are not computed as transformers computes
            them, see `verify_source`.
    """
    weights = WeightsDigest(source, on_bytes)  # while they are loaded
    try:
        checked = verify_source(source, layers, device, dtype)
        module = load_weights(
            AutoModelForCausalLM,
            source,
            dtype="auto" if dtype == "auto" else getattr(torch, dtype),
            attn_implementation=ATTENTION,
            device="" if device == "cpu" else device,
        )
    except (OSError, ValueError, KeyError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ConfigError(f"cannot load model {source!r}: {first_line}") from error
    if split is not None:
        split(module)
    loaded = prepare_model(module, source, generation_config(source))
    if layers == "invariant":
        _make_invariant(loaded)
    elif layers == "fast":
        if (made := speed_up(module)) is None:
            log.warning("fast layers disagree with plain ones: none used", extra={"model": source})
            del module, loaded  # before it is loaded again
            return load_model(source, device, dtype, "plain", stored_dtype, split)
        log.info("fast layers", extra={"model": source, **made.as_fields()})
        if checked is not None and checked.has_own_forward:
            use_own_forward(loaded)
    loaded.stored_dtype = stored_dtype
    loaded.fingerprint = _fingerprint(loaded, weights.result())
    loaded.let_adapters()
    return loaded


def _make_invariant(model: LoadedModel) -> None:
    """Compute each token alike, whatever else is in its step.

    Raises:
        UnsupportedModelError: the model, the machine or the dtype cannot.
    """
    what = f"SYMPHONY_LAYERS=invariant: {model.source!r}"
    if not can_be_invariant(model.device, model.dtype):
        raise UnsupportedModelError(
            f"{what} would compute in {model.dtype} on {model.device.type}; "
            "only bfloat16 and float32 on a CPU, with numba, can"
        )
    if speed_up(model.module, fixed_rows=True) is None:
        raise UnsupportedModelError(f"{what}: its layers cannot be replaced")
    if products := variant_products(model.module):
        raise UnsupportedModelError(
            f"{what} multiplies matrices outside of linear layers ({', '.join(sorted(products))})"
        )
    model.is_invariant = True


def _fingerprint(model: LoadedModel, digest: blake2b) -> str:
    """Hash of what makes two models' KV interchangeable.

    Args:
        digest: of its weights; continued.
    """
    layout = (model.dtype, model.num_layers, model.num_kv_heads, model.head_dim, BLOCK_TOKENS)
    digest.update(f"{layout}:{KV_LAYOUT_VERSION}".encode())
    if model.is_invariant:
        digest.update(f":invariant:{INVARIANT_VERSION}".encode())
    if model.stored_form is not None:
        digest.update(f":{model.stored_dtype}:{INT8_VERSION}".encode())
    return digest.hexdigest()
