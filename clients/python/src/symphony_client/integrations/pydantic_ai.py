"""For pydantic-ai: a capability that names each request's turn, and announces those after tools."""

from collections.abc import Iterable
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.settings import ModelSettings

from symphony_client.workflow import Agent, Workflow


class SymphonyCapability(AbstractCapability[Any]):
    """``agent.run(..., capabilities=[SymphonyCapability(workflow)])``.

    Args:
        name: of the agent in the workflow; None: what pydantic-ai calls it.
        next: who follows it, if that is known.
        session_id: whose history it goes on; None: as of `Workflow.agent`.
    """

    def __init__(
        self,
        workflow: Workflow,
        name: str | None = None,
        *,
        next: str | Iterable[str] | None = None,
        session_id: str | None = None,
    ) -> None:
        self._workflow = workflow
        self._name = name
        self._next = next
        self._session_id = session_id
        self._agent: Agent | None = None

    async def for_run(self, ctx: Any) -> "SymphonyCapability":
        """One of its own for each run."""
        name = self._name or getattr(ctx.agent, "name", None) or "agent"
        own = SymphonyCapability(self._workflow, name, next=self._next, session_id=self._session_id)
        own._agent = self._workflow.agent(name, self._session_id, self._next)
        return own

    def get_model_settings(self) -> Any:
        """Each request says whose turn it is, besides what it says anyhow."""
        agent = self._agent
        if agent is None:
            return None
        identity = agent.identity

        def settings(ctx: Any) -> ModelSettings:
            given = (ctx.model_settings or {}).get("extra_body")
            return ModelSettings(
                extra_body={**(given if isinstance(given, dict) else {}), **identity}
            )

        return settings

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        """It is at work; if it fails, what was announced is taken back."""
        if self._agent is None:
            return await handler()
        with self._agent:
            return await handler()

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """Its turn is here."""
        if self._agent is not None:
            self._agent.turn_begins()
        return request_context

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        """Its turn comes when this is done."""
        if self._agent is None:
            return await handler(args)
        with self._agent.tool(call.tool_name):
            return await handler(args)
