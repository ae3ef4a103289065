"""A deployment on a real vLLM that takes adapters: as `test_deployment`, through its HTTP API."""

import json
import os
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


def ask(client: OpenAI, model: str, **more: Any) -> tuple[str, int]:
    """What a model says, greedy, and how much of the prompt was not computed."""
    made = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=16,
        temperature=0, extra_body={"ignore_eos": True, **more},
    )  # fmt: skip
    assert made.usage is not None and made.usage.prompt_tokens_details is not None
    return made.choices[
        0
    ].message.content or "", made.usage.prompt_tokens_details.cached_tokens or 0


def test_adapters_of_the_registry_take_turns_in_one_place(client: OpenAI) -> None:
    base = next(each.id for each in client.models.list() if ":" not in each.id)
    names = [base, f"{base}:n1", f"{base}:n2"]
    first = [ask(client, name) for name in names]
    assert len({text for text, _ in first}) == 3 and [cached for _, cached in first] == [0, 0, 0]
    again = [ask(client, name) for name in names]
    assert [text for text, _ in again] == [text for text, _ in first]
    assert all(cached >= 320 for _, cached in again), "each finds its own KV"


def test_a_reply_is_held_to_a_schema(client: OpenAI) -> None:
    schema = {
        "type": "object", "properties": {"mill": {"enum": ["red", "blue"]}}, "required": ["mill"],
        "additionalProperties": False,
    }  # fmt: skip
    base = next(each.id for each in client.models.list() if ":" not in each.id)
    for model in (base, f"{base}:n1"):
        form: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
        made = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": QUESTION}],
            response_format=form,
        )  # fmt: skip
        assert json.loads(made.choices[0].message.content or "")["mill"] in ("red", "blue")
