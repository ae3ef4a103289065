"""For openai-agents: hooks of a run, and settings that name each agent's session."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from agents import ModelSettings, RunHooks

from symphony_client.integrations.at_work import AgentsAtWork
from symphony_client.workflow import Workflow


def model_settings(
    workflow: Workflow, name: str, settings: ModelSettings | None = None
) -> ModelSettings:
    """An agent's settings, which name it, its workflow and its session in each request. They belong
    to one workflow: make new agents for each, or `Agent.clone` them.
    """
    base = settings or ModelSettings()
    body = {**(base.extra_body or {}), **workflow.agent(name).identity}
    return replace(base, extra_body=body)


class SymphonyRunHooks(RunHooks[Any]):
    """``Runner.run(..., hooks=SymphonyRunHooks(workflow))``: announces turns after tools and
    handoffs.

    There is no hook for a run that fails: run it within ``with workflow:``, which takes back what
    was announced and will not come.

    Args:
        following: what each agent is known to be followed by.
    """

    def __init__(
        self, workflow: Workflow, following: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        self._at_work = AgentsAtWork(workflow, following)

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """It is at work."""
        self._at_work.get(agent.name)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]
    ) -> None:
        """Its turn is here."""
        self._at_work.get(agent.name).turn_begins()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Its turn comes when this is done."""
        self._at_work.get(agent.name).tool_started(tool.name, _call_id(context, tool))

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        """It may be."""
        self._at_work.get(agent.name).tool_ended(tool.name, _call_id(context, tool))

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Another goes on, now."""
        self._at_work.get(from_agent.name).hands_off_to(to_agent.name, 0.0)
        self._at_work.leave(from_agent.name)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """It is done."""
        self._at_work.leave(agent.name)


def _call_id(context: Any, tool: Any) -> str:
    """Of a function's call; other tools have no ids, and run one at a time."""
    return str(getattr(context, "tool_call_id", None) or tool.name)
