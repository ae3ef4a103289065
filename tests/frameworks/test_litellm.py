"""LiteLLM, by its providers `openai`, `hosted_vllm` and `anthropic`, and its responses."""

import asyncio
import json
from typing import Any

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import KEY, City, needs

pytestmark = [*needs("litellm"), pytest.mark.filterwarnings("ignore")]  # it warns of itself

QUESTION = {"role": "user", "content": "Where to?"}


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which asks nobody what models cost."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm")


def _asked(cluster: Cluster, provider: str = "openai") -> dict[str, Any]:
    base = cluster.url if provider == "anthropic" else f"{cluster.url}/v1"
    return {
        "model": f"{provider}/{DEMO_MODEL_ID}", "api_base": base, "api_key": KEY,
        "max_tokens": 900, "temperature": 0.0, "num_retries": 0,
    }  # fmt: skip


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_it_says_something(cluster: Cluster, litellm: Any, provider: str) -> None:
    short = _asked(cluster, provider) | {"max_tokens": 20}
    said = litellm.completion(**short, messages=[QUESTION])
    text = said.choices[0].message.content
    assert text and said.usage.completion_tokens
    pieces = litellm.completion(**short, messages=[QUESTION], stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text


@pytest.mark.parametrize("provider", ["openai", "anthropic"])  # hosted_vllm opens closed schemas
def test_it_calls_a_tool(cluster: Cluster, litellm: Any, provider: str) -> None:
    asked = _asked(cluster, provider)
    visit = {"name": "go", "description": "Go there.", "parameters": City.model_json_schema()}
    tooled = asked | {"tools": [{"type": "function", "function": visit}]}
    first = litellm.completion(**tooled, tool_choice="required", messages=[QUESTION])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    results = [
        {"role": "tool", "tool_call_id": call.id,
         "content": City.model_validate_json(call.function.arguments).name}
        for call in message.tool_calls
    ]  # fmt: skip
    then = litellm.completion(**tooled | {"max_tokens": 20}, messages=[QUESTION, message, *results])
    assert then.choices[0].message.content
    chunks = list(
        litellm.completion(**tooled, tool_choice="required", messages=[QUESTION], stream=True)
    )
    built = litellm.stream_chunk_builder(chunks).choices[0].message
    calls = [json.loads(call.function.arguments) for call in built.tool_calls]
    assert calls == [json.loads(call.function.arguments) for call in message.tool_calls]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_it_fills_in_a_form(cluster: Cluster, litellm: Any, provider: str) -> None:
    found = litellm.completion(
        **_asked(cluster, provider), messages=[QUESTION], response_format=City
    )
    assert City.model_validate_json(found.choices[0].message.content)


def test_it_asks_for_responses(cluster: Cluster, litellm: Any) -> None:
    asked = {key: value for key, value in _asked(cluster).items() if key != "max_tokens"}
    asked["max_output_tokens"] = 20
    first = litellm.responses(**asked, input="Where to?")
    assert first.output[0].content[0].text
    events = list(
        litellm.responses(**asked, input="Why?", previous_response_id=first.id, stream=True)
    )
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.usage.input_tokens > first.usage.input_tokens


def test_it_asks_for_messages(cluster: Cluster, litellm: Any) -> None:
    asked = _asked(cluster, "anthropic") | {"max_tokens": 20}
    reply = asyncio.run(litellm.anthropic.messages.acreate(**asked, messages=[QUESTION]))
    assert reply["content"][0]["text"] and reply["role"] == "assistant"
