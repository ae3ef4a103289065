"""Rotary frequencies go by the length of each row's sequence, whatever runs beside it."""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.core.turns.turn import Turn
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.rotary import RowwiseRotary
from services.worker.device.model import load_model
from tests.unit.worker.device.driver import Driver, make_core
from tests.unit.worker.device.gpu.test_gpu_executor import Repeats, gpu_executor
from tests.unit.worker.device.test_torch_executor import executor_of, greedy, prompt, save_model

ORIGINAL = 150
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [1.0 + 0.7 * n for n in range(8)]}
ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, **FACTORS}
LENGTH = {"original_max_position_embeddings": ORIGINAL}
TINY: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.15}
MOE = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 32}
PARTIAL = {"partial_rotary_factor": 0.5, "short_factor": [1.0] * 4, "long_factor": [1, 2, 3, 5]}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3, length in the config": ("phi3", {**LENGTH, "rope_parameters": ROPE}),
    "phi3, partial": ("phi3", {**LENGTH, "rope_parameters": {**ROPE, **PARTIAL}}),
    "llama": ("llama", {"rope_parameters": {**ROPE, **LENGTH, "factor": 4.0}}),
    "llama, scaled": ("llama", {"rope_parameters": {**ROPE, **LENGTH, "attention_factor": 1.4}}),
    "phimoe": (
        "phimoe",
        {**MOE, "rope_parameters": {**ROPE, **LENGTH, "short_mscale": 1.1, "long_mscale": 1.4}},
    ),
}


def save(folder: Path, name: str = "phi3, length in the config", **more: Any) -> Any:
    kind, changes = KINDS[name]
    return save_model(folder, kind, **{**TINY, **changes, **more})


@cache
def _greedy_once(reference: Any, tokens: tuple[int, ...], count: int) -> list[int]:
    return greedy(reference, list(tokens), count)


def greedy_once(reference: Any, tokens: list[int], count: int) -> list[int]:
    return _greedy_once(reference, tuple(tokens), count)


def log_probabilities(model: Any, tokens: list[int]) -> torch.Tensor:
    """Of each token behind the first, in one pass over one sequence."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    scores: torch.Tensor = logits.log_softmax(-1)[range(len(tokens) - 1), tokens[1:]]
    return scores


def assert_scores(driver: Driver, reference: Any, name: str, tokens: list[int]) -> None:
    entries = driver.deltas[name][0].prompt_logprobs
    assert entries is not None
    got = torch.tensor([each.logprob for each in entries[1:]])
    torch.testing.assert_close(got, log_probabilities(reference, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_each_row_is_as_transformers_computes_it_alone(tmp_path: Path, name: str) -> None:
    """Short, long from its start and in chunks, growing long beside others, just not long."""
    reference = save(tmp_path, name)
    lengths = {"short": 40, "grows": ORIGINAL - 3, "edge": ORIGINAL, "long": 230}
    prompts = {turn: prompt(n, length) for n, (turn, length) in enumerate(lengths.items())}
    with executor_of(tmp_path) as executor:
        assert executor.info.short_rope_max == ORIGINAL
        driver = Driver(make_core(executor, prefill_tokens_max=100), executor)
        for turn, tokens in prompts.items():
            driver.submit(turn, tokens, max_tokens=5, prompt_logprobs=0)
        driver.run()
    for turn, tokens in prompts.items():
        assert driver.tokens(turn) == greedy(reference, tokens, 5), turn
        assert_scores(driver, reference, turn, tokens)


def test_recorded_launches_go_by_row_as_well(tmp_path: Path) -> None:
    reference = save(tmp_path)
    recorder = Repeats()
    prompts = {str(n): prompt(n, n) for n in (40, ORIGINAL - 3, 170)}
    with gpu_executor(tmp_path, recorder) as executor:
        driver = Driver(make_core(executor, turns_running_max=5, prefill_tokens_max=100), executor)
        for name, tokens in prompts.items():
            driver.submit(name, tokens, max_tokens=6)
        driver.run()
    assert recorder.num_repeated
    for name, tokens in prompts.items():
        assert driver.tokens(name) == greedy(reference, tokens, 6), name


def test_answers_do_not_depend_on_companions(tmp_path: Path) -> None:
    """Random ones, some of one prefix, that are preempted at random: also those that have just
    become long."""
    reference = save(tmp_path)
    rng = random.Random(5)
    rows = [(rng.choice([70, 126, 147, 149, 150, 151, 190]), rng.choice([2, 5])) for _ in range(6)]
    preempted_long = 0
    with executor_of(tmp_path) as executor:
        core = make_core(executor, prefill_tokens_max=90, steps_ahead_max=0)
        driver = Driver(core, executor)

        def preempt() -> None:
            nonlocal preempted_long
            if core.running and rng.random() < 0.4:
                preempted_long += core.queue.victim().cache.is_long
                driver.perform(core.planner.preempt(core.queue.victim(), driver.now_ns()))

        for n, (length, count) in enumerate(rows):
            driver.submit(str(n), prompt(n % 3, length), max_tokens=count)
        driver.run(preempt)
    assert preempted_long
    for n, (length, count) in enumerate(rows):
        said = greedy_once(reference, prompt(n % 3, length), 5)
        assert driver.tokens(str(n)) == said[:count], (n, length)


def go_on(driver: Driver, name: str, before: list[int], added: int) -> list[int]:
    """A session's next turn; its whole prompt."""
    tokens = [*before, *prompt(len(before), added)]
    driver.submit(name, tokens, max_tokens=4, session="s", num_history=max(len(before) - 1, 0))
    driver.run()
    return tokens


def test_a_session_goes_on_from_kv_of_its_own_kind(tmp_path: Path) -> None:
    reference = save(tmp_path)
    cached, history = [], list[int]()
    with executor_of(tmp_path) as executor:
        driver = Driver(make_core(executor, prefill_tokens_max=64), executor)
        for n, added in enumerate((70, 20, 49, 60, 10)):  # 70, 94, 147 that grows, 211, 225
            tokens = go_on(driver, str(n), history, added)
            assert driver.tokens(str(n)) == greedy(reference, tokens, 4)
            cached.append(driver.deltas[str(n)][0].cached_tokens)
            history = [*tokens, *driver.tokens(str(n))]
    # The third turn's last token makes it long, and is the first whose KV it would need.
    assert cached == [0, 73, 97, 0, 214]


def test_another_worker_goes_on_with_it(tmp_path: Path) -> None:
    """What an attempt generated before is a part of the sequence, whatever its prompt was."""
    reference = save(tmp_path)
    first = prompt(3, ORIGINAL - 2)
    said = greedy(reference, first, 9)
    with executor_of(tmp_path) as executor:
        driver = Driver(make_core(executor), executor)
        for num_before in (1, 2, 3, 5):
            turn = driver.make_turn(str(num_before), [*first, *said[:num_before]], max_tokens=9)
            request = replace(turn.request, attempt=2, num_generated_before=num_before)
            later = Turn(request, turn.cache)
            driver.perform(driver.core.on_turn(later, driver.now_ns()))
        driver.run()
    for num_before in (1, 2, 3, 5):
        assert driver.tokens(str(num_before)) == said[num_before:]


def test_equal_factors_are_no_border(tmp_path: Path) -> None:
    """As a converter writes the frequencies of Llama 3.1."""
    same = {**ROPE, **LENGTH, "short_factor": [1.5] * 8, "long_factor": [1.5] * 8}
    reference = save(tmp_path, "llama", rope_parameters=same)
    tokens = prompt(1, ORIGINAL - 2)
    with executor_of(tmp_path) as executor:
        assert executor.info.short_rope_max == 0
        driver = Driver(make_core(executor), executor)
        driver.submit("a", tokens, max_tokens=6)
        driver.run()
    assert driver.tokens("a") == greedy(reference, tokens, 6)


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_no_call_changes_a_module(tmp_path: Path, rope_type: str) -> None:
    """And transformers' own, which a call changes, is there no more."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    rope = {**ROPE, **LENGTH} if rope_type == "longrope" else dynamic
    save(tmp_path, "llama", rope_parameters=rope, max_position_embeddings=256)
    model = load_model(str(tmp_path), "cpu", "auto")
    rotary = model.module.model.rotary_emb
    assert isinstance(rotary, RowwiseRotary) == (rope_type == "longrope")
    parts = list(rotary.children()) or [rotary]
    states = [vars(part) | dict(part.named_buffers()) for part in parts]
    before = [{name: repr(value) for name, value in state.items()} for state in states]
    executor = TorchExecutor(model, "m", 100, lambda *_: None)
    driver = Driver(make_core(executor), executor)
    driver.submit("a", prompt(1, 200), max_tokens=200)
    driver.submit("b", prompt(1, 20), max_tokens=3)
    driver.run()
    executor.close()
    assert len(driver.tokens("a")) == 56, "no sequence is longer than what it is served for"
    states = [vars(part) | dict(part.named_buffers()) for part in parts]
    assert before == [{name: repr(value) for name, value in state.items()} for state in states]
