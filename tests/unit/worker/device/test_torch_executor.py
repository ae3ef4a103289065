"""The engine's logits and tokens against plain transformers, on several architectures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.worker.device.base.step import StepContext, running_step
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.attention import UnsupportedModelError
from services.worker.device.layers import Mode
from services.worker.device.model import load_model
from tests.unit.worker.device.driver import Driver, make_core

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 200,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1},
    "qwen3": {},
    "mistral": {"sliding_window": 48},
    "gemma": {},
    "gemma2": {"sliding_window": 32, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 32, "query_pre_attn_scalar": 16},
}


def save_model(folder: Path, kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SMALL, **ARCHITECTURES.get(kind, {}), **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    return model


@contextmanager
def executor_of(
    folder: Path, num_pages: int = 300, dtype: str = "auto", layers: Mode = "fast"
) -> Iterator[TorchExecutor]:
    model = load_model(str(folder), "cpu", dtype, layers)
    executor = TorchExecutor(model, "m", num_pages, lambda *_: None)
    yield executor
    executor.close()


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def prompt(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 200, (length,), generator=generator).tolist()


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_agrees_with_transformers(kind: str, tmp_path: Path) -> None:
    """Mixed batch of chunked prefills and decodes: prompt log-probabilities and greedy tokens."""
    reference = save_model(tmp_path, kind)
    prompts = {"a": prompt(1, 150), "b": prompt(2, 64), "c": prompt(3, 5), "d": prompt(4, 129)}
    with executor_of(tmp_path) as executor:
        driver = Driver(make_core(executor, prefill_tokens_max=100), executor)
        for name, tokens in prompts.items():
            driver.submit(name, tokens, max_tokens=6, prompt_logprobs=0)
        driver.run()
    for name, tokens in prompts.items():
        assert driver.tokens(name) == greedy(reference, tokens, 6)
        with torch.inference_mode():
            logits = reference(torch.tensor([tokens]), use_cache=False).logits[0]
        want = logits.log_softmax(-1)[range(len(tokens) - 1), tokens[1:]]
        entries = driver.deltas[name][0].prompt_logprobs
        assert entries is not None
        assert [entry.token for entry in entries] == tokens
        assert entries[0].logprob is None
        got = torch.tensor([entry.logprob for entry in entries[1:]])
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_helpers_are_offered_all_that_an_order_takes_while_any_can_work(tmp_path: Path) -> None:
    """Not only what they take without one of them taking more than its share."""
    save_model(tmp_path, "llama")
    crew: Any = SimpleNamespace(num_ready=1, tokens_max=512, num_tokens=40)
    with executor_of(tmp_path, num_pages=4) as executor:
        assert executor.assist_tokens == 0, "it has none"
        executor._crew = crew
        assert executor.assist_tokens == 512
        crew.num_ready = 0
        assert executor.assist_tokens == 0, "none can work now"
        executor._crew = None


def test_a_returning_turn_computes_only_what_is_new(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "llama")
    first = prompt(1, 150)
    with executor_of(tmp_path) as executor:
        driver = Driver(make_core(executor), executor)
        driver.submit("one", first, max_tokens=10)
        driver.run()
        second = first + driver.tokens("one") + prompt(2, 20)
        driver.submit("two", second, max_tokens=10)
        driver.run()
    assert driver.deltas["two"][0].cached_tokens == 128
    assert driver.tokens("two") == greedy(reference, second, 10)


def test_preempted_turns_lose_nothing(tmp_path: Path) -> None:
    """A pool too small for all: turns are preempted and still say what they would have said."""
    reference = save_model(tmp_path, "llama")
    prompts = {str(n): prompt(n, 60) for n in range(5)}
    with executor_of(tmp_path, num_pages=27) as executor:
        driver = Driver(make_core(executor), executor)
        for name, tokens in prompts.items():
            driver.submit(name, tokens, max_tokens=80)
        driver.run()
    assert driver.core.planner.num_preemptions > 0
    for name, tokens in prompts.items():
        assert driver.tokens(name) == greedy(reference, tokens, 80)


def test_sampling_is_reproducible_by_seed_in_any_batch(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    with executor_of(tmp_path) as executor:
        alone = Driver(make_core(executor), executor)
        alone.submit("x", prompt(1, 70), max_tokens=20, temperature=1.0, seed=7, top_p=0.9)
        alone.run()
        crowd = Driver(make_core(executor), executor)
        for n in range(6):
            crowd.submit(str(n), prompt(n + 5, 33), max_tokens=20, temperature=1.0, seed=n)
        crowd.submit("x", prompt(1, 70), max_tokens=20, temperature=1.0, seed=7, top_p=0.9)
        crowd.run()
    assert alone.tokens("x") == crowd.tokens("x")
    assert len({tuple(crowd.tokens(str(n))) for n in range(6)}) == 6


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 3, "min_tokens": 5},
        {"repetition_penalty": 3.0},
        {"presence_penalty": 1.5, "frequency_penalty": 1.5},
        {"prompt_logprobs": 2, "logprobs": 2},
    ],
)
def test_steps_planned_ahead_say_what_steps_in_turn_say(
    tmp_path: Path, sampling: dict[str, Any]
) -> None:
    save_model(tmp_path, "llama")
    said = []
    for steps_ahead_max in (0, 1):
        with executor_of(tmp_path) as executor:
            driver = Driver(
                make_core(executor, prefill_tokens_max=64, steps_ahead_max=steps_ahead_max),
                executor,
            )
            for n in range(3):
                driver.submit(str(n), prompt(n, 50 + 70 * n), max_tokens=5 + 4 * n, **sampling)
            driver.run()
        assert bool(driver.num_carried) == bool(steps_ahead_max)
        deltas = [delta for n in range(3) for delta in driver.deltas[str(n)]]
        said.append([(delta.tokens, delta.finish, delta.logprobs) for delta in deltas])
    assert said[0] == said[1]


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    save_model(tmp_path / "a", "llama")
    model = save_model(tmp_path / "b", "llama")
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1e-3
    model.save_pretrained(tmp_path / "b")
    prints = {load_model(str(tmp_path / name), "cpu", "auto").fingerprint for name in "ab"}
    prints.add(load_model(str(tmp_path / "a"), "cpu", "bfloat16").fingerprint)
    assert len(prints) == 3


def test_attention_sinks_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "gpt_oss", num_local_experts=2, sliding_window=16)
    with pytest.raises(UnsupportedModelError, match="attention sinks"):
        load_model(str(tmp_path), "cpu", "auto")


def test_every_layer_sees_the_running_step(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    seen: list[tuple[int, int]] = []

    def look(_: Any, inputs: tuple[torch.Tensor]) -> None:
        step = running_step()
        assert isinstance(step, StepContext)
        seen.append((step.batch.num_seqs, inputs[0].shape[1]))

    with executor_of(tmp_path, layers="plain") as executor:
        executor._model.module.model.layers[2].mlp.up_proj.register_forward_pre_hook(look)
        driver = Driver(make_core(executor), executor)
        driver.submit("a", [1, 2, 3], max_tokens=2)
        driver.submit("b", [4, 5], max_tokens=2)
        driver.run()
    assert seen == [(2, 5), (2, 2)]
    with pytest.raises(LookupError):
        running_step()
