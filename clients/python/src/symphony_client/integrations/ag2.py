"""For AG2: a middleware.

Each agent's model has to send its names:
``OpenAIConfig(..., extra_body=workflow.agent("writer").identity)``.
"""

from typing import Any

from ag2.middleware import BaseMiddleware

from symphony_client.workflow import Agent


class SymphonyMiddleware(BaseMiddleware):
    """``Agent(..., middleware=[Middleware(SymphonyMiddleware, agent=workflow.agent("writer"))])``:
    announces the turns after tools; if the agent fails, what was announced is taken back.
    """

    def __init__(self, event: Any, context: Any, *, agent: Agent) -> None:
        super().__init__(event, context)
        self._agent = agent

    async def on_turn(self, call_next: Any, event: Any, context: Any) -> Any:
        """It is at work. What AG2 calls a turn may be several of the deployment's."""
        with self._agent:
            return await call_next(event, context)

    async def on_llm_call(self, call_next: Any, events: Any, context: Any) -> Any:
        """Its turn is here."""
        self._agent.turn_begins()
        return await call_next(events, context)

    async def on_tool_execution(self, call_next: Any, event: Any, context: Any) -> Any:
        """Its turn comes when this is done."""
        with self._agent.tool(event.name):
            return await call_next(event, context)
