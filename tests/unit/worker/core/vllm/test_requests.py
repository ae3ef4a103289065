"""What of a turn's sampling vLLM is asked for."""

from dataclasses import fields
from typing import Any

import pytest

from services.worker.core.turns.intake import take_in
from services.worker.core.vllm.requests import request_args
from services.worker.device.base.executor import ModelInfo, shape_of
from shared.ids import FrontendId, ModelId, TurnId
from shared.wire.messages import Prompt, SamplingParams, TurnStart, pack_ints

INFO = ModelInfo(
    model_id="m", source="m", fingerprint="f", max_model_len=64, num_layers=2, page_bytes=8,
    stored_page_bytes=8, num_pages=20, vocab_size=100, end_token_ids=frozenset([9]),
    block_tokens=64,
)  # fmt: skip
START = TurnStart(
    turn_id=TurnId("t"), frontend_id=FrontendId("f"), model_id=ModelId("m"), num_prompt_tokens=3
)
# A value of each field that changes the reply.
CHANGED: dict[str, Any] = {
    "max_tokens": 7,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "repetition_penalty": 1.5,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "logit_bias": [(5, 2.0)],
    "allowed_token_ids": [5],
    "seed": 4,
    "stop_token_ids": [5],
    "ignore_eos": True,
    "min_tokens": 2,
    "logprobs": 0,
    "prompt_logprobs": 0,
}


def args_of(num_generated: int = 0, **sampling: Any) -> dict[str, Any]:
    params = SamplingParams(**{"max_tokens": 8, **sampling})
    prompt = Prompt(
        turn_id=TurnId("t"), attempt=1, tokens=pack_ints([1, 2, 3]), sampling=params,
        num_generated=num_generated,
    )  # fmt: skip
    return request_args(take_in(START, prompt, shape_of(INFO), 0), INFO)


@pytest.mark.parametrize("name", CHANGED)
def test_a_field_changes_what_vllm_is_asked_for(name: str) -> None:
    assert args_of(**{name: CHANGED[name]}) != args_of()


def test_no_field_is_left_out() -> None:
    of_forms = {"grammar", "json_after"}
    assert CHANGED.keys() | of_forms == {each.name for each in fields(SamplingParams)}


def test_a_moved_turn_goes_on_with_what_is_left() -> None:
    args = args_of(num_generated=2, seed=4, min_tokens=3, prompt_logprobs=1)
    assert (args["max_tokens"], args["min_tokens"], args["prompt_logprobs"]) == (6, 1, None)
    assert args["seed"] == args_of(num_generated=2, seed=4)["seed"] != args_of(seed=4)["seed"]
    assert args_of(num_generated=1, seed=4)["seed"] != args["seed"]
