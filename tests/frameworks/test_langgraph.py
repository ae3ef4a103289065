"""LangGraph: a graph that calls a tool, says what it made of it, and is streamed."""

from typing import Any

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import KEY, City, needs

pytestmark = [*needs("langgraph"), *needs("langchain_openai")]


def test_a_graph_calls_a_tool_and_is_streamed(cluster: Cluster) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    tools = pytest.importorskip("langchain_core.tools")
    graph = pytest.importorskip("langgraph.graph")
    prebuilt = pytest.importorskip("langgraph.prebuilt")
    called: list[str] = []

    def go(name: str, size: int) -> str:
        """Go there."""
        called.append(name)
        return f"it rains in {name}"

    visit = tools.tool(args_schema=City)(go)
    model = chat(
        model=DEMO_MODEL_ID,
        base_url=f"{cluster.url}/v1",
        api_key=KEY,
        temperature=0,
        max_tokens=900,
    )

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        choice = "none" if state["messages"][-1].type == "tool" else "go"
        asked = model.bind_tools([visit], tool_choice=choice, strict=True)
        if choice == "none":
            asked = asked.bind(max_tokens=20)
        return {"messages": [asked.invoke(state["messages"])]}

    built = graph.StateGraph(graph.MessagesState)
    built.add_node("ask", ask)
    built.add_node("tools", prebuilt.ToolNode([visit]))
    built.add_edge(graph.START, "ask")
    built.add_conditional_edges("ask", prebuilt.tools_condition)
    built.add_edge("tools", "ask")
    said, steps = [], []
    for kind, event in built.compile().stream(
        {"messages": [("user", "Where to?")]}, stream_mode=["messages", "updates"]
    ):
        if kind == "messages":
            said.append(event[0])
        else:
            steps.extend(event)
    assert steps == ["ask", "tools", "ask"]
    assert called and f"it rains in {called[0]}" in [message.content for message in said]
    pieces = [message for message in said if message.type == "AIMessageChunk"]
    assert sum(bool(piece.tool_call_chunks) for piece in pieces) > 1
    assert sum(bool(piece.content) for piece in pieces) > 1
