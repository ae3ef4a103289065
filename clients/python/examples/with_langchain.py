"""An agent of LangChain: its next turn is announced while its tool runs."""

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, wrap_model_call
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from parts import API_KEY, BASE_URL, MAX_TOKENS, MODEL, QUESTION, WORKFLOW, show, weather

from symphony_client import SymphonyClient
from symphony_client.integrations.langchain import SymphonyMiddleware


@wrap_model_call
def tool_first(request: ModelRequest, handler: Callable[[ModelRequest], Any]) -> Any:
    """A small model calls a tool only if it must, and then with what the schema allows."""
    is_first = request.messages[-1].type == "human"
    return handler(
        request.override(
            tool_choice="required" if is_first else "none",
            model_settings={"strict": True, "parallel_tool_calls": False},
        )
    )


with SymphonyClient() as client, client.workflow(WORKFLOW, "examples", model=MODEL) as workflow:
    model = ChatOpenAI(
        model=MODEL,
        base_url=BASE_URL,
        api_key=API_KEY,
        max_tokens=MAX_TOKENS,
        temperature=0.0,
    )
    guide = create_agent(
        model,
        [tool(weather)],
        middleware=[tool_first, SymphonyMiddleware(workflow.agent("guide"))],
    )
    said = guide.invoke({"messages": [("user", QUESTION)]})
    show(client, said["messages"][-1].content)
