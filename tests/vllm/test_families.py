"""Models of several kinds on a real vLLM: what comes back from below says the same."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.scene import fill, scene_in, talk

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

SMALL = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
WINDOWS = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2}


@pytest.mark.parametrize(
    ("kind", "more", "is_kept"),
    [
        ("LlamaConfig", {}, True),
        ("Qwen3Config", {}, True),
        ("MixtralConfig", {**EXPERTS, "sliding_window": None}, True),
        ("Gemma3TextConfig", WINDOWS, True),
        ("MistralConfig", {"sliding_window": 128}, False),  # in all its layers
    ],
)
def test_a_history_from_below_says_what_a_computed_one_does(
    tmp_path: Path, kind: str, more: dict[str, Any], is_kept: bool
) -> None:
    model = make_model(tmp_path / "model", kind, more)

    async def scenario() -> None:
        async with scene_in(tmp_path, model=model) as scene:
            assert bool(scene.engine.peers) == is_kept
            prompt = talk(1, 400)
            first, delta = await scene.ask(prompt)
            assert not delta.cached_tokens
            await fill(scene)
            again, delta = await scene.ask(prompt)
            assert again == first
            assert not is_kept or delta.cached_in == {"host": 384}

    asyncio.run(scenario())


def make_model(folder: Path, kind: str, more: dict[str, Any]) -> Path:
    """One with random weights, in a folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SMALL, **more)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder
