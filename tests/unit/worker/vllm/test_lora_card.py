"""What adapters a model takes on vLLM."""

import pytest
import torch
from transformers import LlamaConfig, PreTrainedConfig

from services.worker.vllm.lora_card import card_for_vllm
from shared.wire.messages import LoraTarget

CONFIG = LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=64,
)  # fmt: skip


def test_linear_layers_of_decoder_layers_are_taken_and_the_head_is_not() -> None:
    card = card_for_vllm(CONFIG, torch.bfloat16, 4096, 64, None)
    assert card is not None and not card.outer
    assert (card.layers_path, card.num_layers, card.rank_max) == ("model.layers", 2, 64)
    assert (card.dtype, card.element_bytes, card.page_bytes) == ("bfloat16", 2, 4096)
    assert LoraTarget(name="self_attn.k_proj", num_in=32, num_out=16) in card.targets
    assert len(card.targets) == 7


def test_only_what_vllm_was_asked_to_take_is_named() -> None:
    card = card_for_vllm(CONFIG, torch.float32, 4096, 512, ["k_proj", "down_proj"])
    assert card is not None and card.rank_max == 256, "as our adapters have them"
    assert [each.name for each in card.targets] == ["self_attn.k_proj", "mlp.down_proj"]


def test_a_model_that_is_no_decoder_takes_none(caplog: pytest.LogCaptureFixture) -> None:
    assert card_for_vllm(PreTrainedConfig(), torch.float32, 4096, 64, None) is None
    assert "model takes no adapters" in caplog.text
