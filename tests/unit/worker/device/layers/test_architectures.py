"""Fast layers beside plain ones, on every architecture that is known to work."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.worker.device.base.step import LayerProbe, running_step
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.attention import ATTENTION
from services.worker.device.layers.fast import FastLayers, make_fast, probe
from services.worker.device.model import load_model
from tests.unit.worker.device.driver import Driver, make_core
from tests.unit.worker.device.test_torch_executor import ARCHITECTURES, SMALL, prompt

LAYERS = 3
MORE: dict[str, dict[str, Any]] = {
    "phi3": {},
    "olmo2": {},
    "granite": {},
    "starcoder2": {},
    "stablelm": {},
    "cohere": {},
    "gpt_neox": {},
    "gpt2": {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 512},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
}
NOT_TAKEN = {"gpt2": set(SMALL) - {"vocab_size"}, "gpt_neox": {"head_dim", "num_key_value_heads"}}

# Of each layer: linear layers, those of them that are merged, norms, MLPs, rotary embeddings; and
# norms outside of layers.
EXPECTED = {
    "llama": (7, 5, 2, 1, 1, 1),
    "qwen2": (7, 5, 2, 1, 1, 1),
    "qwen3": (7, 5, 4, 1, 1, 1),
    "mistral": (7, 5, 2, 1, 1, 1),
    "gemma": (7, 5, 2, 1, 1, 1),
    "gemma2": (7, 5, 4, 1, 1, 1),
    "gemma3_text": (7, 5, 6, 1, 1, 1),
    "phi3": (4, 0, 2, 0, 1, 1),
    "olmo2": (7, 5, 4, 1, 1, 1),
    "granite": (7, 5, 2, 1, 1, 1),
    "starcoder2": (6, 3, 0, 0, 1, 0),
    "stablelm": (7, 5, 0, 1, 1, 0),
    "cohere": (7, 5, 0, 1, 0, 0),  # rotates neighbours, not halves
    "gpt_neox": (4, 0, 0, 0, 1, 0),
    "gpt2": (0, 0, 0, 0, 0, 0),
    "mixtral": (4, 3, 2, 0, 1, 1),
    "qwen3_moe": (4, 3, 4, 0, 1, 1),
}

# Together they have every kind of fast layer, with biases and without, each way of rotating,
# windows and experts; of the others `test_logits_are_as_before` runs the layers, on one batch.
BATCHED = {
    "llama", "qwen2", "gemma3_text", "phi3", "starcoder2", "stablelm", "cohere", "qwen3_moe",
}  # fmt: skip


def make_model(kind: str) -> Any:
    """With norms and biases that are not all the same."""
    torch.manual_seed(0)
    changes = {**SMALL, **{**ARCHITECTURES, **MORE}[kind], "num_hidden_layers": LAYERS}
    changes = {k: v for k, v in changes.items() if k not in NOT_TAKEN.get(kind, ())}
    if kind == "gpt2":
        changes |= MORE[kind] | {"eos_token_id": None, "bos_token_id": None}
    config = AutoConfig.for_model(kind, **changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    model.requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def away(logits: torch.Tensor, reference: torch.Tensor) -> float:
    return float((logits.float() - reference).norm() / reference.norm())


@pytest.mark.parametrize("kind", EXPECTED)
def test_what_is_recognized(kind: str) -> None:
    linears, merged, norms, mlps, rotaries, others = EXPECTED[kind]
    made = make_fast(make_model(kind), pack=True)
    assert (
        FastLayers(
            packed=LAYERS * linears + 1,
            merged=LAYERS * merged,
            norms=LAYERS * norms + others,
            mlps=LAYERS * mlps,
            rotaries=LAYERS * rotaries,
            packed_bytes=made.packed_bytes,
            copied_bytes=made.copied_bytes,
        )
        == made
    )


@pytest.mark.parametrize("kind", EXPECTED)
def test_logits_are_as_before(kind: str) -> None:
    """In float32 but for rounding, in bf16 no further from float32 than they were."""
    model = make_model(kind)
    reference = probe(model)
    rounded = make_model(kind).to(torch.bfloat16)
    before = away(probe(rounded), reference)
    make_fast(model, pack=True)
    assert away(probe(model), reference) < 5e-6
    packs_bf16 = torch.cpu._is_avx512_supported()
    make_fast(rounded, pack=packs_bf16)
    assert away(probe(rounded), reference) < 1.25 * before


@pytest.mark.parametrize(
    "kind",
    [kind if kind in BATCHED else pytest.param(kind, marks=pytest.mark.slow) for kind in EXPECTED],
)
def test_tokens_are_as_before(kind: str, tmp_path: Path) -> None:
    """Chunks of prompts and decodes in one batch, from one token a turn to more than 256 rows."""
    make_model(kind).save_pretrained(tmp_path)
    plain = load_model(str(tmp_path), "cpu", "auto", "plain")
    fast = load_model(str(tmp_path), "cpu", "auto", "plain")
    make_fast(fast.module, pack=True)
    assert run(fast) == run(plain)


def run(model: Any) -> dict[str, list[int]]:
    executor = TorchExecutor(model, "m", 300, lambda *_: None)
    driver = Driver(make_core(executor, prefill_tokens_max=400), executor)
    for seed, length in enumerate((290, 64, 5, 129)):
        driver.submit(str(seed), prompt(seed, length), max_tokens=6)
    driver.run()
    executor.close()
    return {name: driver.tokens(name) for name in driver.deltas}


def test_models_of_one_process_share_nothing() -> None:
    fast, plain = make_model("llama"), make_model("llama")
    reference = probe(plain)
    forwards = {type(module): type(module).forward for module in plain.modules()}
    make_fast(fast, pack=True)
    other = make_model("llama")
    other.lm_head.weight.mul_(2)
    make_fast(other, pack=True)
    assert all(kind.forward is forward for kind, forward in forwards.items())
    assert torch.equal(probe(plain), reference)
    assert away(probe(fast), reference) < 5e-6
    assert away(probe(other), 2 * reference) < 5e-6


def test_linear_layers_keep_their_names_and_may_be_wrapped() -> None:
    """What adapters need: each target is called, sees the step, and its output may be added to."""
    fast, plain = make_model("qwen2"), make_model("qwen2")
    make_fast(fast, pack=True)
    seen: list[str] = []

    def adapt(name: str) -> Any:
        def add(_: Any, args: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
            assert isinstance(running_step(), LayerProbe)
            seen.append(name)
            return out + 0.1 * args[0].sum(-1, keepdim=True)

        return add

    for model in (fast, plain):
        for name, module in model.named_modules():
            if name.rsplit(".", 1)[-1] in ("q_proj", "v_proj", "up_proj", "down_proj"):
                module.register_forward_hook(adapt(name))
    assert away(probe(fast), probe(plain)) < 5e-6
    assert len(seen) == 2 * 4 * LAYERS and len(set(seen)) == 4 * LAYERS
