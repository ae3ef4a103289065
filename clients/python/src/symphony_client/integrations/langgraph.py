"""For graphs of LangGraph, by LangChain's callbacks: a handler that knows which are agents."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from symphony_client.integrations.at_work import AgentsAtWork
from symphony_client.workflow import Agent, Workflow

CALLS_MAX = 1024


def successors(graph: Any) -> dict[str, list[str]]:
    """Of each node those that always follow it: the edges of a compiled graph that depend on
    nothing.
    """
    found: dict[str, list[str]] = {}
    for edge in graph.get_graph().edges:
        if not edge.conditional and not {edge.source, edge.target} & {"__start__", "__end__"}:
            found.setdefault(edge.source, []).append(edge.target)
    return found


class SymphonyCallbackHandler(BaseCallbackHandler):
    """``graph.invoke(..., {"callbacks": [SymphonyCallbackHandler(workflow, ["writer"])]})``.

    Each agent's model has to send its names:
    ``model.bind(extra_body=workflow.agent("writer").identity)``.

    Args:
        agents: nodes that ask a model. The others are not turns.
        following: what each of them is known to be followed by, such as `successors`.
    """

    raise_error = False
    run_inline = True  # in the order of what happens

    def __init__(
        self,
        workflow: Workflow,
        agents: Iterable[str],
        following: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._names = frozenset(agents)
        known = {
            name: [other for other in others if other in self._names]
            for name, others in (following or {}).items()
        }
        self._at_work = AgentsAtWork(workflow, known)
        self._nodes: dict[UUID, str] = {}
        self._models: dict[UUID, str] = {}
        self._tools: dict[UUID, tuple[Agent, str]] = {}
        self._callers: OrderedDict[str, str] = OrderedDict()  # agents by their calls' ids

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A node begins, which may be an agent."""
        node = self._agent_of(metadata)
        if node is not None and kwargs.get("name") == node:
            self._nodes[run_id] = node
            self._at_work.get(node)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """It is done."""
        if (node := self._nodes.pop(run_id, None)) is not None:
            self._at_work.leave(node)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """It has failed."""
        if (node := self._nodes.pop(run_id, None)) is not None:
            self._at_work.leave(node, has_failed=True)

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """An agent's turn is here."""
        node = self._agent_of(metadata)
        if node is not None:
            self._models[run_id] = node
            self._at_work.workflow.agent(node).turn_begins()

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """It is over; the tools that it calls may run in a node of their own."""
        node = self._models.pop(run_id, None)
        if node is None:
            return
        for choices in response.generations:
            for choice in choices:
                for call in getattr(getattr(choice, "message", None), "tool_calls", ()):
                    self._callers[str(call["id"])] = node
        while len(self._callers) > CALLS_MAX:
            self._callers.popitem(last=False)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """It is over."""
        self._models.pop(run_id, None)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        """The turn of the agent that called it comes when it is done."""
        caller = self._callers.pop(tool_call_id or "", None) or self._agent_of(metadata)
        if caller is None:
            return
        name = str(kwargs.get("name") or (serialized or {}).get("name") or "tool")
        agent = self._at_work.find(caller) or self._at_work.workflow.agent(caller)
        self._tools[run_id] = agent, name
        agent.tool_started(name, str(run_id))

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """It is done."""
        self._tool_ended(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """It has failed, which its agent sees in its next turn, or not at all."""
        self._tool_ended(run_id)

    def _tool_ended(self, run_id: UUID) -> None:
        agent, name = self._tools.pop(run_id, (None, ""))
        if agent is not None:
            agent.tool_ended(name, str(run_id))

    def _agent_of(self, metadata: Mapping[str, Any] | None) -> str | None:
        node = (metadata or {}).get("langgraph_node")
        return node if node in self._names else None
