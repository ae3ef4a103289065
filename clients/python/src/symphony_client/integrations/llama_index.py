"""For LlamaIndex's agent workflows: reads the events that a run streams.

Tools say nothing to its instrumentation, but are in these. Each agent's model has to send its
names: ``OpenAILike(..., additional_kwargs={"extra_body": workflow.agent("writer").identity})``.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from llama_index.core.agent.workflow import AgentInput, ToolCall, ToolCallResult

from symphony_client.integrations.at_work import AgentsAtWork
from symphony_client.workflow import Workflow


async def announced(
    run: Any,
    workflow: Workflow,
    agent: str | None = None,
    following: Mapping[str, Iterable[str]] | None = None,
) -> AsyncIterator[Any]:
    """The events of a run, which announce turns as they pass. Read them to the end, then await the
    run:

    ``async for event in announced(run, workflow): ...``

    Args:
        run: what ``AgentWorkflow.run()`` gave, or that of an agent alone.
        agent: the name in the workflow, of an agent alone; None: what LlamaIndex calls each.
        following: what each agent is known to be followed by.

    A run that fails raises here; what was announced is taken back then.
    """
    at_work = AgentsAtWork(workflow, following)
    name: str | None = None
    try:
        async for event in run.stream_events():
            if isinstance(event, AgentInput):
                present = agent or event.current_agent_name
                if name is not None and name != present:
                    at_work.leave(name)
                name = present
                at_work.get(name).turn_begins()
            elif name is not None and isinstance(event, ToolCallResult):
                at_work.get(name).tool_ended(event.tool_name, event.tool_id)
            elif name is not None and isinstance(event, ToolCall):
                at_work.get(name).tool_started(event.tool_name, event.tool_id)
            yield event
    except BaseException:
        if name is not None:
            at_work.leave(name, has_failed=True)
        raise
    if name is not None:
        at_work.leave(name)
