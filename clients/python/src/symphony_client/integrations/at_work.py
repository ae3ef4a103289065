"""Agents of one workflow that are at work, by name, for frameworks that say who begins and ends."""

import threading
from collections.abc import Iterable, Mapping

from symphony_client.workflow import Agent, Workflow


class AgentsAtWork:
    """Args:
    following: what each agent is known to be followed by, if that is fixed.
    """

    def __init__(
        self, workflow: Workflow, following: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        self.workflow = workflow
        self._following = {name: tuple(others) for name, others in (following or {}).items()}
        self._agents: dict[str, Agent] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Agent:
        """The agent, entered if it is not at work yet."""
        with self._lock:
            agent = self._agents.get(name)
            if agent is not None:
                return agent
            agent = self.workflow.agent(name, next=self._following.get(name))
            self._agents[name] = agent
        agent.enter()
        return agent

    def find(self, name: str) -> Agent | None:
        """The agent, if it is at work."""
        with self._lock:
            return self._agents.get(name)

    def leave(self, name: str, *, has_failed: bool = False) -> None:
        """It is done, if it was at work."""
        with self._lock:
            agent = self._agents.pop(name, None)
        if agent is not None:
            agent.leave(has_failed=has_failed)
