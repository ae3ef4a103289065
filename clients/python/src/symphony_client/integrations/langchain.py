"""For LangChain's agents (``langchain.agents.create_agent``): a middleware. Graphs of one's own are
in `langgraph`.
"""

from typing import Any

from langchain.agents.middleware import AgentMiddleware

from symphony_client.workflow import Agent, Workflow


class SymphonyMiddleware(AgentMiddleware):
    """``create_agent(model, tools, middleware=[SymphonyMiddleware(workflow.agent("writer"))])``:
    names each request's turn, and announces those after tools.

    There is no hook for an agent that fails: run it within ``with workflow:``, which takes back
    what was announced and will not come.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = agent

    @property
    def workflow(self) -> Workflow:
        """In which the agent is."""
        return self._agent.workflow

    def before_agent(self, state: Any, runtime: Any) -> None:
        """It is at work."""
        self._agent.enter()

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        """It is at work."""
        self._agent.enter()

    def after_agent(self, state: Any, runtime: Any) -> None:
        """It is done."""
        self._agent.leave()

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """It is done."""
        self._agent.leave()

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        """Its turn is here."""
        return handler(self._named(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Its turn is here."""
        return await handler(self._named(request))

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Its turn comes when this is done."""
        with self._agent.tool(request.tool_call["name"]):
            return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Its turn comes when this is done."""
        with self._agent.tool(request.tool_call["name"]):
            return await handler(request)

    def _named(self, request: Any) -> Any:
        """The request, which says whose turn it is besides what it says anyhow."""
        settings = request.model_settings
        given = settings.get("extra_body") or getattr(request.model, "extra_body", None) or {}
        body = {**given, **self._agent.extra_body}
        return request.override(model_settings={**settings, "extra_body": body})
