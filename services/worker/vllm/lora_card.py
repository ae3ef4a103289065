"""What adapters a model takes on vLLM, for frontends to refuse others."""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from services.worker.device.lora.sites import lora_card
from shared.wire.messages import LoraCard

log = logging.getLogger(__name__)


def card_for_vllm(
    config: Any, dtype: torch.dtype, page_bytes: int, rank_max: int, only: Collection[str] | None
) -> LoraCard | None:
    """The linear layers of the decoder's layers; None: it takes no adapters. vLLM has no adapters
    on others that our adapters may have: heads of some sizes only.

    Args:
        config: of transformers.
        only: ends of the names that vLLM was asked to take; None: all.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        log.warning("model takes no adapters", extra={"reason": str(error)})
        return None
    found = lora_card(model, config.num_hidden_layers, dtype, page_bytes)
    if found is None:
        return None
    targets = [
        each for each in found.targets if only is None or each.name.rpartition(".")[2] in only
    ]
    return replace(found, targets=targets, outer=[], rank_max=min(rank_max, found.rank_max))
