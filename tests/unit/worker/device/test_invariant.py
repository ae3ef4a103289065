"""`SYMPHONY_LAYERS=invariant`: an answer is the same to the bit in any company."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.config import WorkerConfig
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.attention import UnsupportedModelError
from services.worker.device.model import load_model
from services.worker.load import make_real
from shared.errors import ConfigError
from tests.unit.worker.device.driver import Driver, make_core
from tests.unit.worker.device.lora.test_lora import BASE, serve
from tests.unit.worker.device.test_torch_executor import prompt, save_model

# Wide enough that a library sums up otherwise for 33 rows than for 32.
WIDE = {
    "hidden_size": 640,
    "intermediate_size": 672,
    "num_attention_heads": 10,
    "num_hidden_layers": 2,
}
LENGTHS = (5, 64, 150)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products on several threads wait for the slowest, beside other tests for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "llama", **WIDE)
    return folder


@pytest.fixture(params=["bfloat16", "float32"])
def executor(folder: Path, request: pytest.FixtureRequest) -> Iterator[TorchExecutor]:
    executor = executor_of(folder, request.param, "invariant")
    yield executor
    executor.close()


def executor_of(folder: Path, dtype: str, layers: Any) -> TorchExecutor:
    return TorchExecutor(load_model(str(folder), "cpu", dtype, layers), "m", 300, lambda *_: None)


def submit(driver: Driver, length: int) -> None:
    """One of the requests whose answers are compared."""
    draws: dict[str, Any] = {"temperature": 1.0, "seed": 7} if length == 64 else {}
    driver.submit(
        f"own {length}", prompt(length, length), max_tokens=12, prompt_logprobs=2, logprobs=2,
        **draws,
    )  # fmt: skip


def answers(driver: Driver) -> dict[str, Any]:
    """Tokens and log-probabilities, of prompts too, however they were cut into messages."""
    return {
        name: [
            [token for delta in deltas for token in delta.tokens],
            [each for delta in deltas for each in delta.logprobs or ()],
            [each for delta in deltas for each in delta.prompt_logprobs or ()],
            deltas[-1].finish,
        ]
        for name, deltas in driver.deltas.items()
        if name.startswith("own")
    }


def alone(executor: TorchExecutor) -> dict[str, Any]:
    driver = Driver(make_core(executor), executor)
    for length in LENGTHS:
        submit(driver, length)
        driver.run()
    return answers(driver)


def in_company(executor: TorchExecutor, seed: int, **limits: int) -> dict[str, Any]:
    """Beside others that come at any step, in prompts' chunks of any size."""
    rng = random.Random(seed)
    driver = Driver(make_core(executor, **limits), executor)
    waiting, steps = list(LENGTHS), iter(range(12))

    def on_step() -> None:
        if next(steps, None) is not None:
            for _ in range(rng.randrange(3)):
                tokens = prompt(rng.randrange(1 << 20), rng.randint(1, 90))
                driver.submit(f"other {rng.random()}", tokens, max_tokens=9)
        if waiting and rng.random() < 0.5:
            submit(driver, waiting.pop(rng.randrange(len(waiting))))

    on_step()
    driver.run(on_step)
    while waiting:
        submit(driver, waiting.pop())
        driver.run()
    return answers(driver)


@pytest.mark.parametrize("seed", range(2))
def test_company_changes_nothing(executor: TorchExecutor, seed: int) -> None:
    want = alone(executor)
    assert in_company(executor, seed, prefill_tokens_max=(23, 200)[seed]) == want


def test_without_it_company_does(folder: Path) -> None:
    executor = executor_of(folder, "bfloat16", "fast")
    assert in_company(executor, 0, prefill_tokens_max=23) != alone(executor)
    executor.close()


def test_history_is_as_if_computed_again(executor: TorchExecutor) -> None:
    """KV that decodes made, found by the next turn, and a turn that goes on elsewhere."""
    driver = Driver(make_core(executor), executor)
    driver.submit("first", prompt(1, 90), max_tokens=80)
    driver.run()
    said = driver.tokens("first")
    driver.submit("next", [*prompt(1, 90), *said, 5, 6], max_tokens=12, logprobs=2)
    driver.run()
    assert driver.deltas["next"][0].cached_tokens == 128
    again = Driver(make_core(executor), executor)
    again.submit("next", [*prompt(1, 90), *said, 5, 6], max_tokens=12, logprobs=2)
    again.run()
    again.submit("moved", [*prompt(1, 90), *said[:11]], max_tokens=69)
    again.run()
    assert again.deltas["next"][0].cached_tokens == 0
    logprobs = [
        [each for delta in each.deltas["next"] for each in delta.logprobs or ()]
        for each in (driver, again)
    ]
    assert logprobs[0] == logprobs[1]
    assert again.tokens("moved") == said[11:]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_beside_others(tmp_path: Path) -> None:
    served = serve("llama", tmp_path, "bfloat16")
    served.model = load_model(str(tmp_path / "base"), "cpu", "bfloat16", "invariant")
    own = {name: (name, prompt(3, 140), 6) for name in [BASE, *served.peft.refs]}
    others = {
        f"{name} {seed}": (name, prompt(seed, 7 * seed + 1), 4)
        for name in own
        for seed in range(10, 14)
    }
    beside = served.run(others | own, num_pages=2000, prefill_tokens_max=333)
    for name, turn in own.items():
        alone = served.run({name: turn}, prefill_tokens_max=100)
        assert beside.tokens(name) == alone.tokens(name)
        assert beside.deltas[name][0].prompt_logprobs == alone.deltas[name][0].prompt_logprobs


def test_a_model_that_multiplies_elsewhere_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "mixtral", num_local_experts=4, num_experts_per_tok=2)
    with pytest.raises(UnsupportedModelError, match="outside of linear layers"):
        load_model(str(tmp_path), "cpu", "bfloat16", "invariant")


def test_its_kv_is_its_own(folder: Path) -> None:
    prints = {
        load_model(str(folder), "cpu", "bfloat16", layers).fingerprint
        for layers in ("fast", "plain", "invariant")
    }
    assert len(prints) == 2


def test_rounded_kv_is_refused(folder: Path) -> None:
    settings = {"layers": "invariant", "kv_stored_dtype": "int8", "device": "cpu"}
    config = WorkerConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="SYMPHONY_KV_STORED_DTYPE='int8'"):
        make_real(config, "m", str(folder), lambda *_: None)
