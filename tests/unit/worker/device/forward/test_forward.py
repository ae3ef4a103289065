"""Our own forward pass beside transformers' own, step by step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.device import verify
from services.worker.device.base.step import StepContext
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.decoder.module_forward import ModuleForward
from services.worker.device.forward import Decoder, observing, reading
from services.worker.device.lora.additions import make_additions
from services.worker.device.model import load_model
from tests.unit.worker.device.driver import Driver, make_core
from tests.unit.worker.device.lora.test_lora import Served, serve
from tests.unit.worker.device.test_torch_executor import prompt, save_model

# What PEFT asks transformers is not ours to change.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {},
    "phi3": {"partial_rotary_factor": 0.5},
    "olmo2": {},
    "granite": {
        "embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 4.0,
        "attention_multiplier": 0.4,
    },
}  # fmt: skip
# As a share of the logits' norm. bf16 keeps 8 bits, so that two of its steps are 2 / 256.
AGREES = {torch.float32: 1e-4, torch.bfloat16: 2 * 2**-8}


@dataclass
class Both:
    """A forward that computes every step twice, and says what ours says.

    Attributes:
        away: how far ours was, of each step, as a share of the norm.
        kinds: what steps there were.
    """

    ours: Decoder
    theirs: ModuleForward
    away: list[float] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    def __call__(
        self, step: StepContext, tokens: torch.Tensor, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        copied = replace(step, pool=step.pool.clone(), attended=set(), stall_ns=[*step.stall_ns])
        want = self.theirs(copied, tokens, wanted)
        got = self.ours(step, tokens, wanted)
        self.away.append(float((got - want).float().norm() / want.float().norm()))
        starts, contexts = step.batch.query_starts, step.batch.context_lens
        new = [end - start for start, end in pairwise(starts)]
        chunks = [context > num for num, context in zip(new, contexts, strict=True) if num > 1]
        self.kinds.add("mixed" if chunks and 1 in new else "prefill" if chunks else "decode")
        self.kinds |= {"resumed"} if any(chunks) else set()
        self.kinds |= {"adapters"} if step.lora is not None else set()
        return got

    def take_adapters(self, additions: Any) -> None:
        raise AssertionError("taken when the model was loaded")

    def sum_outputs(self, modules: Any, sum_ranks: Any) -> None:
        raise AssertionError("there is one rank")


@contextmanager
def both(model: LoadedModel, folder: Path, dtype: str) -> Iterator[Both]:
    """Let a model compare itself with another one of the same weights."""
    other = load_model(str(folder), "cpu", dtype)
    theirs = ModuleForward(other.module)
    if other.lora is not None:
        theirs.take_adapters(make_additions(other.module, other.lora, other.lora_sites))
    assert isinstance(model.forward, Decoder), "transformers' own forward is used"
    compared = Both(model.forward, theirs)
    model.forward = compared
    yield compared
    assert compared.away and max(compared.away) <= AGREES[model.dtype]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_agrees_with_transformers_own_forward(kind: str, dtype: str, tmp_path: Path) -> None:
    save_model(tmp_path, kind, **FAMILIES[kind])
    model = load_model(str(tmp_path), "cpu", dtype)
    with both(model, tmp_path, dtype) as compared:
        executor = TorchExecutor(model, "m", 300, lambda *_: None)
        driver = Driver(make_core(executor, prefill_tokens_max=40), executor)
        for n in range(4):
            driver.submit(str(n), prompt(n, 20 + 30 * n), max_tokens=3 + 2 * n)
        driver.run()
        executor.close()
    assert compared.kinds == {"prefill", "mixed", "decode", "resumed"}


@pytest.mark.parametrize("kind", ["llama", "phi3"])
def test_agrees_with_adapters(kind: str, tmp_path: Path) -> None:
    served: Served = serve(kind, tmp_path)
    with both(served.model, tmp_path / "base", "auto") as compared:
        names = ["base", *served.peft.refs]
        served.run({name: (name, prompt(2, 60), 6) for name in names}, prefill_tokens_max=40)
    assert "adapters" in compared.kinds


def test_an_adapter_that_is_forgotten_shows(tmp_path: Path) -> None:
    """What the tests above hold: the comparison sees a site that adds nothing."""
    served: Served = serve("llama", tmp_path)
    decoder = served.model.forward
    assert isinstance(decoder, Decoder)
    with both(served.model, tmp_path / "base", "auto") as compared:
        decoder.layers[1].mlp.down.addition = None
        served.run({"wide": ("wide", prompt(2, 60), 2)})
        assert max(compared.away) > AGREES[torch.float32]
        compared.away[:] = [0.0]


OTHERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "cohere": {},
    # Of the same names, but they turn neighbours, scale queries by position, or gate.
    "ernie4_5": {},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 64,
            "max_position_embeddings": 256, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "qwen3_next": {"layer_types": ["full_attention"] * 3, "mlp_only_layers": [0, 1, 2]},
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", OTHERS)
def test_families_of_other_parts_keep_transformers_own(
    kind: str, dtype: str, tmp_path: Path
) -> None:
    save_model(tmp_path, kind, **OTHERS[kind])
    model = load_model(str(tmp_path), "cpu", dtype)
    assert isinstance(model.forward, ModuleForward)


def test_a_forward_that_small_models_show_to_be_wrong_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one short prompt of the model itself does not show."""
    save_model(tmp_path, "mistral", sliding_window=16)
    observe = observing.observe

    def blind(*given: Any) -> Any:
        observed = observe(*given)
        assert observed is not None
        shapes = {layer: replace(of, window=0) for layer, of in observed.shapes.items()}
        return replace(observed, shapes=shapes)

    monkeypatch.setattr(reading, "observe", blind)
    monkeypatch.setattr(verify, "default_folder", lambda: None)
    assert isinstance(load_model(str(tmp_path), "cpu", "bfloat16").forward, ModuleForward)
