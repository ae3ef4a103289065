"""Whether an adapter fits a base, without a deployment: from the files of both, and no weight of
the base.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.adapters.base_weights import BaseWeights
from shared.adapters.check import BaseFacts, check_adapter
from shared.adapters.layout import image_bytes, layout_image
from shared.adapters.record import ADAPTER_BYTES_MAX
from shared.adapters.source import AdapterLimits
from shared.adapters.vocabulary import vocabulary_of
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError
from shared.wire.messages import LoraCard

if TYPE_CHECKING:
    import torch


def check(folder: Path, source: str) -> dict[str, Any]:
    """What an adapter is on a base.

    Args:
        source: folder or hub id of the base.

    Raises:
        ConfigError: the base cannot be read, or takes no adapters.
        AdapterInvalid: it cannot be served.
    """
    card = base_card(source)
    names = source, Path(source).name
    vocabulary, weights = vocabulary_of(source), BaseWeights(source)
    facts = BaseFacts(names=names, vocabulary=vocabulary, weights=weights)
    checked = check_adapter(folder, card, AdapterLimits(num_bytes=ADAPTER_BYTES_MAX), facts)
    whole = image_bytes(card, layout_image(card, checked.ranks))
    return asdict(checked) | {
        "targets": sorted(checked.ranks),
        "image_bytes": whole,
        "layer_bytes": whole // card.num_layers,
    }


def base_card(source: str) -> LoraCard:
    """`card_of` a base that an adapter was said to be for.

    Raises:
        ConfigError: it cannot be read, or takes none.
    """
    try:
        card = card_of(source)
    except ConfigError as error:
        raise ConfigError(f"--base {error.message}") from None
    if card is None:
        raise ConfigError(f"--base {source}: it takes no adapters")
    return card


def card_of(source: str) -> LoraCard | None:
    """What adapters a decoder takes, as a worker would say that loads it as its files are; None:
    none.

    Raises:
        ConfigError: it cannot be read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from services.worker.device.lora.sites import lora_card

    try:
        config = AutoConfig.from_pretrained(source)
        dtype = config.get_text_config().dtype or torch.float32
        with torch.device("meta"), _default_dtype(dtype):
            module = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{source}: {str(error).strip().splitlines()[0]}") from None
    text = config.get_text_config()
    page_bytes = page_shape(text).numel() * dtype.itemsize
    return lora_card(module, text.num_hidden_layers, dtype, page_bytes)


def page_shape(text: Any) -> "torch.Size":
    """Of a page of KV in the pool, by the config of a decoder: ``[2 * num_kv_heads, block_tokens,
    head_dim]``.
    """
    import torch

    heads = text.num_attention_heads
    num_kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return torch.Size((2 * num_kv_heads, BLOCK_TOKENS, head_dim))


def lines_of(checked: dict[str, Any]) -> list[str]:
    """For people."""
    ranks = ", ".join(f"{name} {checked['ranks'][name]}" for name in checked["targets"])
    return [
        "it can be served",
        f"ranks     {ranks}",
        f"files     {checked['num_bytes'] / 1e6:.2f} MB, {checked['num_tensors']} tensors",
        f"in pages  {checked['image_bytes'] / 1e6:.2f} MB, "
        f"{checked['layer_bytes'] / 1e3:.0f} kB a layer",
        f"hash      {checked['adapter_hash']}",
        *(f"warning   {warning}" for warning in checked["warnings"]),
    ]


@contextmanager
def _default_dtype(dtype: Any) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
