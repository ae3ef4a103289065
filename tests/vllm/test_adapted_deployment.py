"""A deployment on a real vLLM that takes adapters: as `test_deployment`, through its HTTP API."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from loadtest.adapters import Recipe, modules_in, write_adapter
from services.worker.models.demo_model import make_demo_model
from tests.cluster import Cluster, adapter_options

PYTHON = os.environ.get("SYMPHONY_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="SYMPHONY_VLLM_PYTHON names no Python with vLLM"),
]

SETTINGS = {
    "SYMPHONY_VLLM_PYTHON": PYTHON,
    "SYMPHONY_DTYPE": "float32",
    "SYMPHONY_NUM_THREADS": "1",
    "SYMPHONY_MAX_MODEL_LEN": "1024",
    "SYMPHONY_VLLM_ARGS": json.dumps({
        "enable_lora": True, "max_loras": 1, "max_lora_rank": 16, "num_gpu_blocks_override": 20,
    }),
}  # fmt: skip
NO_SPACE = {
    str(byte): -100 for byte in b" \t\r\n"
}  # the demo model may write it until it has to end
QUESTION = "The river ran past the mill and the children counted the boats. " * 6


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    place = tmp_path_factory.mktemp("vllm")
    modules = modules_in(make_demo_model(place / "model"))
    folders = {
        f"n{seed}": write_adapter(place / f"n{seed}", modules, Recipe(seed=seed, rank=4))
        for seed in (1, 2)
    }
    options = adapter_options(folders)
    with (
        Cluster(place / "data", "--engine", "vllm", *options, settings=SETTINGS) as cluster,
        cluster.client() as made,
    ):
        yield made.with_options(timeout=300)


def base_of(client: OpenAI) -> str:
    return next(each.id for each in client.models.list() if ":" not in each.id)


def ask(client: OpenAI, model: str, **more: Any) -> tuple[str, int]:
    """What a model says, greedy, and how much of the prompt was not computed."""
    made = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=16,
        extra_body={"ignore_eos": True, "temperature": 0, **more},
    )  # fmt: skip
    assert made.usage is not None and made.usage.prompt_tokens_details is not None
    return made.choices[
        0
    ].message.content or "", made.usage.prompt_tokens_details.cached_tokens or 0


def test_adapters_of_the_registry_take_turns_in_one_place(client: OpenAI) -> None:
    base = base_of(client)
    names = [base, f"{base}:n1", f"{base}:n2"]
    first = [ask(client, name) for name in names]
    assert len({text for text, _ in first}) == 3 and [cached for _, cached in first] == [0, 0, 0]
    again = [ask(client, name) for name in names]
    assert [text for text, _ in again] == [text for text, _ in first]
    assert all(cached >= 320 for _, cached in again), "each finds its own KV"


SCHEMA = {
    "type": "object", "properties": {"mill": {"enum": ["red", "blue"]}}, "required": ["mill"],
    "additionalProperties": False,
}  # fmt: skip


def test_replies_are_held_to_schemas_regular_expressions_and_choices(client: OpenAI) -> None:
    base = base_of(client)
    form: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA}}
    for model in (base, f"{base}:n1"):
        made = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            response_format=form,
            logit_bias=NO_SPACE,
        )
        assert json.loads(made.choices[0].message.content or "")["mill"] in ("red", "blue")
    sampled = {"ignore_eos": False, "temperature": 1.0}
    assert re.fullmatch(
        "[0-9]{3}-[ab]", ask(client, base, guided_regex="[0-9]{3}-[ab]", **sampled)[0]
    )
    assert ask(client, base, guided_choice=["one", "two"], **sampled)[0] in ("one", "two")
    lark = 'start: "<" /[a-z]/ ">"'
    assert re.fullmatch("<[a-z]>", ask(client, base, guided_grammar=lark, **sampled)[0])


def test_a_tool_that_must_be_called_is(client: OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
    made = client.chat.completions.create(
        model=base_of(client), messages=[{"role": "user", "content": QUESTION}], tools=[tool],
        tool_choice={"type": "function", "function": {"name": "paint"}}, logit_bias=NO_SPACE,
    )  # fmt: skip
    (choice,) = made.choices
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.function.name == "paint", choice
    assert json.loads(call.function.arguments)["mill"] in ("red", "blue"), choice
