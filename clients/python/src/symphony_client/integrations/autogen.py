"""For AutoGen: an intervention handler of its runtime, which sees every message; and for an agent
of AgentChat, which runs its tools itself, `announced`, which reads what its run streams.

Each agent's model has to send its names. With each request:
``extra_create_args={"extra_body": workflow.agent("writer").extra_body}``; for AgentChat:
``OpenAIChatCompletionClient(..., default_headers=workflow.agent("writer").headers)``.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from autogen_core import AgentId, DefaultInterventionHandler, FunctionCall, MessageContext
from autogen_core.models import FunctionExecutionResult

from symphony_client.workflow import Agent, Workflow


class SymphonyInterventionHandler(DefaultInterventionHandler):
    """``SingleThreadedAgentRuntime(intervention_handlers=[...])``: a message to an agent announces
    its turn, and one to a tool that of the agent that sent it.

    Args:
        agents: types of agents that ask a model, which are their names in the workflow. Messages to
            others announce nothing.
        following: what each is known to be followed by when it has answered, such as itself, where
            a user writes again.
    """

    def __init__(
        self,
        workflow: Workflow,
        agents: Iterable[str],
        following: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._workflow = workflow
        self._following = {name: tuple(others) for name, others in (following or {}).items()}
        self._agents: dict[str, Agent] = {name: workflow.agent(name) for name in agents}

    async def on_send(
        self, message: Any, *, message_context: MessageContext, recipient: AgentId
    ) -> Any:
        """It is queued for one agent."""
        sender = message_context.sender
        if isinstance(message, FunctionCall) and sender is not None:
            if (caller := self._agents.get(sender.type)) is not None:
                caller.tool_started(message.name, message.id)
        elif recipient.type in self._agents:
            self._workflow.expect(recipient.type, expected_arrival=0.0)
        return message

    async def on_publish(self, message: Any, *, message_context: MessageContext) -> Any:
        """It is queued for the topic's subscribers, by custom agents of that type."""
        topic = message_context.topic_id
        if topic is not None and topic.type in self._agents:
            self._workflow.expect(topic.type, expected_arrival=0.0)
        return message

    async def on_response(self, message: Any, *, sender: AgentId, recipient: AgentId | None) -> Any:
        """A tool is done, or an agent, whose caller goes on."""
        for name in self._following.get(sender.type, ()):
            self._workflow.expect(name)
        caller = self._agents.get(recipient.type) if recipient is not None else None
        if caller is None:
            return message
        if isinstance(message, FunctionExecutionResult):
            caller.tool_ended(message.name, message.call_id)
        else:
            self._workflow.expect(caller.name, expected_arrival=0.0)
        return message


async def announced(events: AsyncIterator[Any], agent: Agent) -> AsyncIterator[Any]:
    """What an agent of AgentChat streams, which announces its turns as it passes:

    ``async for event in announced(writer.run_stream(task=...), workflow.agent("writer")): ...``
    """
    with agent:
        agent.turn_begins()
        async for event in events:
            kind = getattr(event, "type", None)
            if kind == "ToolCallRequestEvent":
                for call in event.content:
                    agent.tool_started(call.name, call.id)
            elif kind == "ToolCallExecutionEvent":
                for result in event.content:
                    agent.tool_ended(result.name, result.call_id)
            yield event
