"""LlamaIndex's client of servers like OpenAI's."""

from typing import Any

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import KEY, City, needs

pytestmark = needs("llama_index")


def _model(cluster: Cluster, *, max_tokens: int = 900, is_chat_model: bool = True) -> Any:
    like = pytest.importorskip("llama_index.llms.openai_like").OpenAILike
    return like(
        model=DEMO_MODEL_ID, api_base=f"{cluster.url}/v1", api_key=KEY, temperature=0.0,
        max_tokens=max_tokens, context_window=2048, is_chat_model=is_chat_model,
        is_function_calling_model=is_chat_model, max_retries=0,
    )  # fmt: skip


def test_it_says_something(cluster: Cluster) -> None:
    message = pytest.importorskip("llama_index.core.llms").ChatMessage
    question = [message(role="system", content="Be kind."), message(role="user", content="Hello?")]
    model = _model(cluster, max_tokens=20)
    whole = model.chat(question).message.content
    pieces = [piece.delta for piece in model.stream_chat(question)]
    assert whole and "".join(filter(None, pieces)) == whole
    bare = _model(cluster, max_tokens=20, is_chat_model=False)
    text = bare.complete("Hello?").text
    assert text and "".join(piece.delta for piece in bare.stream_complete("Hello?")) == text


def test_it_calls_a_tool(cluster: Cluster) -> None:
    tools = pytest.importorskip("llama_index.core.tools")
    message = pytest.importorskip("llama_index.core.llms").ChatMessage
    called: list[str] = []

    def go(name: str, size: int) -> str:
        """Go there."""
        called.append(name)
        return f"it rains in {name}"

    visit = tools.FunctionTool.from_defaults(fn=go, fn_schema=City)
    model = _model(cluster)
    question = message(role="user", content="Where to?")
    asked: dict[str, Any] = {"tools": [visit], "chat_history": [question], "tool_required": True}
    reply = model.chat_with_tools(**asked)
    calls = model.get_tool_calls_from_response(reply)
    assert all(City(**call.tool_kwargs) for call in calls)
    *_, last = model.stream_chat_with_tools(**asked)
    assert model.get_tool_calls_from_response(last)
    results = [
        message(role="tool", content=str(visit(**call.tool_kwargs)),
                additional_kwargs={"tool_call_id": call.tool_id})
        for call in calls
    ]  # fmt: skip
    assert len(called) == len(calls)
    assert _model(cluster, max_tokens=20).chat([question, reply.message, *results]).message.content


def test_it_fills_in_a_form(cluster: Cluster) -> None:
    prompts = pytest.importorskip("llama_index.core.prompts")
    where = prompts.PromptTemplate("Where are you?")
    assert isinstance(_model(cluster).structured_predict(City, where), City)
    form = _model(cluster).as_structured_llm(City).complete("Where are you?")
    assert isinstance(form.raw, City)
