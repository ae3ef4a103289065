"""For CrewAI: a listener on its event bus.

Each agent's model has to send its names:
``LLM("openai/MODEL", base_url=..., extra_body=workflow.agent("writer").identity)``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from crewai.events import (
    AgentExecutionCompletedEvent,
    AgentExecutionErrorEvent,
    AgentExecutionStartedEvent,
    BaseEventListener,
    LiteAgentExecutionCompletedEvent,
    LiteAgentExecutionErrorEvent,
    LiteAgentExecutionStartedEvent,
    LLMCallStartedEvent,
    ToolUsageErrorEvent,
    ToolUsageFinishedEvent,
    ToolUsageStartedEvent,
)

from symphony_client.integrations.at_work import AgentsAtWork
from symphony_client.workflow import Agent, Workflow


class SymphonyListener(BaseEventListener):
    """Around the ``kickoff`` of a crew, or of an agent alone:
    ``with crewai_event_bus.scoped_handlers(): SymphonyListener(workflow, ["writer"])``.

    The bus is the process's, and a listener gets events of every crew that runs meanwhile: let
    crews whose agents have the same roles run one after the other.

    Args:
        roles: of the crew's agents, which are their names in the workflow.
        following: what each is known to be followed by, as the order of tasks says.
    """

    def __init__(
        self,
        workflow: Workflow,
        roles: Iterable[str],
        following: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._roles = frozenset(roles)
        self._at_work = AgentsAtWork(workflow, following)
        super().__init__()

    def setup_listeners(self, crewai_event_bus: Any) -> None:
        """Listen to agents, their models and their tools."""
        handlers = {
            AgentExecutionStartedEvent: self._on_started,
            AgentExecutionCompletedEvent: self._on_completed,
            AgentExecutionErrorEvent: self._on_failed,
            LiteAgentExecutionStartedEvent: self._on_started_alone,
            LiteAgentExecutionCompletedEvent: self._on_completed_alone,
            LiteAgentExecutionErrorEvent: self._on_failed_alone,
            LLMCallStartedEvent: self._on_model,
            ToolUsageStartedEvent: self._on_tool_started,
            ToolUsageFinishedEvent: self._on_tool_ended,
            ToolUsageErrorEvent: self._on_tool_ended,
        }
        for event, act in handlers.items():
            crewai_event_bus.on(event)(act)

    def _on_started(self, source: Any, event: Any) -> None:
        self._find(event.agent.role)

    def _on_completed(self, source: Any, event: Any) -> None:
        self._at_work.leave(event.agent.role)

    def _on_failed(self, source: Any, event: Any) -> None:
        self._at_work.leave(event.agent.role, has_failed=True)

    def _on_started_alone(self, source: Any, event: Any) -> None:
        """An agent without a crew: by its own ``kickoff``."""
        self._find(event.agent_info["role"])

    def _on_completed_alone(self, source: Any, event: Any) -> None:
        self._at_work.leave(event.agent_info["role"])

    def _on_failed_alone(self, source: Any, event: Any) -> None:
        self._at_work.leave(event.agent_info["role"], has_failed=True)

    def _on_model(self, source: Any, event: Any) -> None:
        if (agent := self._find(event.agent_role)) is not None:
            agent.turn_begins()

    def _on_tool_started(self, source: Any, event: Any) -> None:
        if (agent := self._find(event.agent_role)) is not None:
            agent.tool_started(event.tool_name)

    def _on_tool_ended(self, source: Any, event: Any) -> None:
        if (agent := self._find(event.agent_role)) is not None:
            agent.tool_ended(event.tool_name)

    def _find(self, role: str | None) -> Agent | None:
        """The agent at work, if it is one of ours."""
        return self._at_work.get(role) if role in self._roles and role is not None else None
