"""Our models on a real vLLM, against transformers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.worker.core.vllm.replies import Output
from services.worker.core.vllm.requests import VllmRequest
from services.worker.models.demo_model import make_demo_model

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

PROMPTS = [list(range(1, 60)), list(range(200, 30, -1)), [7] * 130]
NUM_NEW = 12


async def read(outputs: AsyncIterator[Output]) -> list[Output]:
    return [output async for output in outputs]


def test_a_model_says_what_transformers_says_and_keeps_tenants_apart(tmp_path: Path) -> None:
    from services.worker.config import WorkerConfig
    from services.worker.vllm_engine import start_engine

    folder = make_demo_model(tmp_path / "model")
    settings = WorkerConfig.model_validate(
        {"dtype": "float32", "max_model_len": 512, "num_threads": 1}
    )
    engine = start_engine(settings, "m", str(folder))

    request_ids = map(str, range(100))

    async def ask(number: int, salt: str) -> list[Output]:
        args = {
            "max_tokens": NUM_NEW, "temperature": 0.0, "ignore_eos": True, "detokenize": False,
            "logprobs": 2,
        }  # fmt: skip
        request = VllmRequest(
            request_id=next(request_ids), tokens=PROMPTS[number], args=args, salt=salt
        )
        return await read(engine.generate(request))

    async def scenario() -> list[list[list[Output]]]:
        together = [
            await asyncio.gather(*(ask(number, salt) for number in range(len(PROMPTS))))
            for salt in ("a", "b")
        ]
        return [*together, [await ask(2, "a")]]

    try:
        first, other_tenant, again = asyncio.run(scenario())
    finally:
        engine.close()
    expected = [greedy(folder, prompt) for prompt in PROMPTS]
    for replies in (first, other_tenant):
        assert [[token for output in reply for token in output.tokens] for reply in replies] == (
            expected
        )
        assert [reply[0].num_cached for reply in replies] == [0, 0, 0], "of another tenant"
    assert again[0][0].num_cached == 128, "its own tenant's"
    for reply in first:
        for output in reply:
            (position,) = output.logprobs or ()
            assert max(position, key=lambda token: position[token].logprob) == output.tokens[0]


def greedy(folder: Path, prompt: list[int]) -> list[int]:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made = model.generate(
        torch.tensor([prompt]), max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=-1,
        pad_token_id=0,
    )  # fmt: skip
    found: list[int] = made[0, len(prompt) :].tolist()
    return found
