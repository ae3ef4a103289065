"""A trace of agents as calls: what each file of traces is read into."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an agent.

    Attributes:
        workflow: what it belongs to; agents call each other within one.
        session: whose history it goes on.
        start_s, end_s: from any common beginning.
        prompt_tokens, output_tokens: 0: unknown.
        tools: names of tools that it ended with a call of.
    """

    workflow: str
    agent: str
    session: str
    start_s: float
    end_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentTrace:
    """Calls in order of their workflows, and within one of their starts.

    Attributes:
        notes: what was amiss in the file, and what was taken instead.
    """

    name: str
    calls: tuple[Call, ...]
    notes: tuple[str, ...] = ()

    def workflows(self) -> Iterator[list[Call]]:
        """The calls of each."""
        for _, calls in groupby(self.calls, key=lambda call: call.workflow):
            yield list(calls)


def make_trace(name: str, calls: Iterable[Call], *, notes: Iterable[str] = ()) -> AgentTrace:
    """Put calls in order: workflows as they come first, their calls by their starts."""
    by_workflow: dict[str, list[Call]] = {}
    for call in calls:
        by_workflow.setdefault(call.workflow, []).append(call)
    ordered = [sorted(each, key=lambda call: call.start_s) for each in by_workflow.values()]
    return AgentTrace(name, tuple(call for each in ordered for call in each), tuple(notes))
