"""Turns on adapters against PEFT, on several architectures and in one batch with everybody else."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from loadtest.bench.gpu.models import record_all
from services.worker.core.engine.integrity import check_integrity
from services.worker.device.base.executor import Executor
from services.worker.device.copying.mover import Moved
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.gpu.gpu_executor import DeviceApi, GpuExecutor
from services.worker.device.model import load_model
from shared.adapters.check import check_adapter
from shared.adapters.source import AdapterLimits
from shared.adapters.tensors import WEIGHTS_FILE
from shared.wire.messages import AdapterRef, LoraCard
from tests.unit.worker.device.driver import Driver, make_core
from tests.unit.worker.device.gpu.test_gpu_executor import (
    Repeats,
    host_copier,
    want_all,
)
from tests.unit.worker.device.test_torch_executor import prompt, save_model

# What PEFT asks transformers is not ours to change.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

BASE = "base"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LLAMA_LIKE = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
MODULES: dict[str, list[str]] = {
    "llama": LLAMA_LIKE,
    "qwen2": LLAMA_LIKE,
    "qwen3": LLAMA_LIKE,
    "mistral": LLAMA_LIKE,
    "gemma2": LLAMA_LIKE,
    "olmo2": LLAMA_LIKE,
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "mixtral": ATTENTION,
}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "gemma2": {"tie_word_embeddings": False},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@dataclass
class Peft:
    """A base with PEFT's adapters on it, and their files.

    Attributes:
        folder: of every adapter's files, under its hash.
    """

    model: Any
    folder: Path
    refs: dict[str, AdapterRef]

    def greedy(self, name: str, tokens: list[int], count: int) -> list[int]:
        with self._on(name), torch.inference_mode():
            said = self.model.generate(
                input_ids=torch.tensor([tokens]),
                attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
            )
        generated: list[int] = said[0, len(tokens) :].tolist()
        return generated

    def logprobs(self, name: str, tokens: list[int]) -> torch.Tensor:
        """Of each token but the first."""
        wanted: torch.Tensor = self.following(name, tokens)[range(len(tokens) - 1), tokens[1:]]
        return wanted

    def following(self, name: str, tokens: list[int]) -> torch.Tensor:
        """Log-probabilities of all that may follow each of these tokens."""
        with self._on(name), torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        log_probabilities: torch.Tensor = logits.float().log_softmax(-1)
        return log_probabilities

    def _on(self, name: str) -> AbstractContextManager[Any]:
        if name == BASE:
            context: AbstractContextManager[Any] = self.model.disable_adapter()
            return context
        self.model.set_adapter(name)
        return nullcontext()


def configs(kind: str) -> dict[str, LoraConfig]:
    """Four adapters that differ in all that matters."""
    modules = MODULES[kind]
    first, last = modules[0], modules[-1]
    head = [] if kind == "gpt2" else ["lm_head"]  # PEFT takes no Conv1D and Linear in one adapter

    def config(**fields: Any) -> LoraConfig:
        fields = {"target_modules": modules, "init_lora_weights": False, **fields}
        fields["fan_in_fan_out"] = kind == "gpt2"
        return LoraConfig(task_type="CAUSAL_LM", **fields)

    return {
        "one": config(r=1, lora_alpha=3, target_modules=[first]),
        "five": config(r=5, lora_alpha=7, use_rslora=True),
        "eight": config(
            r=8, lora_alpha=16, rank_pattern={first: 3}, alpha_pattern={last: 1},
            layers_to_transform=[0, 2],
        ),
        "wide": config(r=64, lora_alpha=16, target_modules=[*modules, *head]),
    }  # fmt: skip


def peft_of(kind: str, base: Path, folder: Path, card: LoraCard, dtype: str = "auto") -> Peft:
    """Four adapters of the model in `base`, with random weights, saved by PEFT."""
    torch.manual_seed(5)
    plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", dtype=dtype)
    adapters = configs(kind)
    first = next(iter(adapters))
    model = get_peft_model(plain, adapters[first], adapter_name=first)
    for name, config in adapters.items():
        if name != first:
            model.add_adapter(name, config)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    refs = {}
    for name in adapters:
        checked = check_adapter(folder / name, card, AdapterLimits())
        (folder / name).rename(folder / checked.adapter_hash)
        refs[name] = AdapterRef(
            adapter_hash=checked.adapter_hash,
            name=name,
            lora_rank=checked.lora_rank,
            ranks=checked.ranks,
        )
    return Peft(model.eval(), folder, refs)


@dataclass
class Served:
    """The same adapters on our side."""

    model: LoadedModel
    peft: Peft

    def run(
        self,
        turns: dict[str, tuple[str, list[int], int]],
        num_pages: int = 900,
        prefill_tokens_max: int = 100,
        record: Repeats | None = None,
        wrap: Callable[[Any], Executor] | None = None,
    ) -> Driver:
        """Turns by name: on which adapter, their prompts, how many tokens each says.

        Args:
            record: for the executor for GPUs, on the CPU.
            wrap: what is to run the steps, given the executor.
        """
        moved: Queue[Moved] = Queue()
        executor: Executor = TorchExecutor(self.model, "m", num_pages, moved.put)
        if record is not None:
            executor = GpuExecutor(
                self.model, "m", num_pages, 64, DeviceApi(host_copier, record.recorder), moved.put
            )
            want_all(executor, rank=64)
            record_all(executor)
        executor = executor if wrap is None else wrap(executor)
        core = make_core(executor, prefill_tokens_max=prefill_tokens_max)
        driver = Driver(core, executor, str(self.peft.folder), moved)
        for name, (adapter, tokens, count) in turns.items():
            ref = self.peft.refs.get(adapter)
            driver.submit(name, tokens, ref, max_tokens=count, prompt_logprobs=0)
        driver.run()
        executor.close()
        return driver


def serve(kind: str, folder: Path, dtype: str = "auto", **changes: Any) -> Served:
    base = folder / "base"
    save_model(base, kind, **SHAPES.get(kind, {}), **changes)
    model = load_model(str(base), "cpu", dtype)
    assert model.lora is not None
    return Served(model, peft_of(kind, base, folder / "adapters", model.lora, dtype))


def logprobs(driver: Driver, name: str) -> torch.Tensor:
    entries = driver.deltas[name][0].prompt_logprobs
    assert entries is not None
    return torch.tensor([entry.logprob for entry in entries[1:]])


@pytest.mark.parametrize("kind", MODULES)
def test_agrees_with_peft_in_a_mixed_batch(kind: str, tmp_path: Path) -> None:
    """Base and four adapters, prefills in chunks and decodes: log-probabilities and 64 tokens."""
    served = serve(kind, tmp_path)
    names = [BASE, *served.peft.refs]
    turns = {name: (name, prompt(2, 90), 64) for name in names}
    turns |= {f"{name} again": (name, prompt(3, 40), 3) for name in names}
    turns[f"{BASE} same"] = turns[BASE]
    driver = served.run(turns)
    for name, (adapter, tokens, count) in turns.items():
        assert driver.tokens(name) == served.peft.greedy(adapter, tokens, count)
        want = served.peft.logprobs(adapter, tokens)
        assert torch.allclose(logprobs(driver, name), want, atol=1e-4)
    for name in served.peft.refs:
        away = (logprobs(driver, name) - logprobs(driver, f"{BASE} same")).abs().max()
        assert away > 1e-3, f"{name} says what its base says"


def test_in_bf16_agrees_with_peft_whose_adapters_are_float32(tmp_path: Path) -> None:
    """Both round the same sums; what is left is in which order they were added."""
    served = serve("llama", tmp_path, "bfloat16")
    turns = {name: (name, prompt(2, 90), 1) for name in [BASE, *served.peft.refs]}
    driver = served.run(turns)
    for name, (adapter, tokens, _) in turns.items():
        want = served.peft.logprobs(adapter, tokens)
        away = (logprobs(driver, name) - want).abs() / want.abs()
        assert away.mean() < 2**-8 and away.max() < 0.05, f"{name}: {away.max()}"


def test_order_chunks_and_preemption_change_nothing(tmp_path: Path) -> None:
    served = serve("llama", tmp_path)
    turns = {
        f"{name} {at}": (name, prompt(at, 20 + 20 * at), 150)
        for at in range(3)
        for name in [BASE, *served.peft.refs]
    }
    wanted = served.run(turns)
    backwards = served.run(dict(reversed(turns.items())), prefill_tokens_max=17)
    small = {name: turn for name, turn in turns.items() if turn[0] != "wide"}
    crowded = served.run(small, num_pages=3 * 13)
    assert crowded.core.planner.num_preemptions, "there was room for all"
    for name in turns:
        assert backwards.tokens(name) == wanted.tokens(name)
    for name in small:
        assert crowded.tokens(name) == wanted.tokens(name)


def test_a_gpu_s_recorded_steps_replay_with_any_mix_of_adapters(tmp_path: Path) -> None:
    """Recorded with no adapter; replayed with one, some and none, as turns come to their ends."""
    served = serve("llama", tmp_path)
    turns = {
        f"{name} {at}": (name, prompt(at, 20 + 30 * at), 10 + 13 * at)
        for at in range(3)
        for name in [BASE, *served.peft.refs]
    }
    recorder = Repeats()
    on_gpu = served.run(turns, record=recorder)
    assert recorder.num_repeated > 20
    wanted = served.run(turns)
    for name in turns:
        assert on_gpu.tokens(name) == wanted.tokens(name)


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_files_that_are_not_there_cost_their_own_turns_only(harm: str, tmp_path: Path) -> None:
    served = serve("llama", tmp_path)
    weights = served.peft.folder / served.peft.refs["five"].adapter_hash / WEIGHTS_FILE
    if harm == "gone":
        weights.unlink()
    else:
        raw = bytearray(weights.read_bytes())
        raw[-7] ^= 1
        weights.write_bytes(raw)
    turns = {name: (name, prompt(2, 90), 5) for name in [BASE, *served.peft.refs]}
    driver = served.run(turns)
    for name, (adapter, tokens, count) in turns.items():
        if name == "five":
            assert driver.deltas[name][-1].code == "adapter_unavailable"
        else:
            assert driver.tokens(name) == served.peft.greedy(adapter, tokens, count)
    check_integrity(driver.core)
