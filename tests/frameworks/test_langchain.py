"""LangChain over `/v1/chat/completions` and `/v1/responses`."""

from typing import Any

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import KEY, LONG, City, needs

pytestmark = needs("langchain_openai")


def test_langchain(cluster: Cluster) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    tools = pytest.importorskip("langchain_core.tools")

    def go(name: str) -> str:
        """Go there."""
        return f"it rains in {name}"

    visit = tools.tool(go)

    model = chat(
        model=DEMO_MODEL_ID, base_url=f"{cluster.url}/v1", api_key=KEY, temperature=0, max_tokens=60
    )
    assert model.invoke("Hello?").content
    assert "".join(str(chunk.content) for chunk in model.stream("Hello?"))
    asked = model.bind_tools([visit], tool_choice="go")
    reply = asked.invoke("Where to?")
    if not reply.tool_calls:  # cut off: the name may be any length
        assert reply.response_metadata["finish_reason"] == "length"
    for method in ("json_schema", "function_calling"):
        longer = chat(
            model=DEMO_MODEL_ID,
            base_url=f"{cluster.url}/v1",
            api_key=KEY,
            temperature=0,
            max_tokens=900,
        )
        found = longer.with_structured_output(City, method=method).invoke("Where are you?")
        assert isinstance(found, City)


def test_langchain_sends_only_what_is_new(cluster: Cluster) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    model = chat(
        model=DEMO_MODEL_ID, base_url=f"{cluster.url}/v1", api_key=KEY, temperature=0,
        max_tokens=20, use_previous_response_id=True,
    )  # fmt: skip
    messages: list[Any] = [("user", LONG)]
    first = model.invoke(messages)
    second = model.invoke([*messages, first, ("user", "Why?")])
    usage = second.usage_metadata
    assert usage["input_tokens"] > first.usage_metadata["total_tokens"]
    assert usage["input_token_details"]["cache_read"] > 0
