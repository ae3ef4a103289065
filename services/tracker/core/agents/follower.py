"""Follows agents' turns and announces their probable successors."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import ceil

from services.tracker.core.agents.agent_limits import AgentLimits
from services.tracker.core.agents.graph import CallGraph, Successor, is_tool
from services.tracker.core.agents.hints import AgentHint, LiveHint, Outcomes
from services.tracker.core.agents.workflow import AgentTurn, Workflow
from shared.ids import SessionId, TenantId

WorkflowKey = tuple[TenantId, str]
GraphKey = tuple[TenantId, str]

LATE_SHARE = 0.95  # a successor later than this quantile of delays,
LATE_FACTOR = 2  # times this factor, is not expected any more
ROUNDED_OFF = 0.25  # of a session: the mean is rarely a whole number
CLOSED_MAX = 4  # idle workflows that one turn ends, which takes time as each is learned from


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the start or end of a turn leads to.

    Attributes:
        hints: to announce, the most probable first.
        used: the hint that announced this turn.
    """

    hints: list[AgentHint] = field(default_factory=list)
    used: LiveHint | None = None


def application_of(agent: str) -> str:
    """The application of an agent: the part of its name before the first slash.

    >>> application_of("metagpt/engineer"), application_of("engineer")
    ('metagpt', '')
    """
    return agent.partition("/")[0] if "/" in agent else ""


class AgentFollower:
    """Call graphs of every tenant's applications, and the workflows that run on them. Tenants are
    fully separated.

    Args:
        learned: graphs by application, learned before; each tenant starts with a copy.

    Attributes:
        outcomes: counts of all hints so far.
    """

    def __init__(self, limits: AgentLimits, learned: Mapping[str, CallGraph] | None = None) -> None:
        self.outcomes = Outcomes()
        self._limits = limits
        self._learned = dict(learned or {})
        self._graphs: OrderedDict[GraphKey, CallGraph] = OrderedDict()
        self._workflows: OrderedDict[WorkflowKey, Workflow] = OrderedDict()
        self._num_graphs: Counter[TenantId] = Counter()
        self._num_workflows: Counter[TenantId] = Counter()

    @property
    def num_workflows(self) -> int:
        return len(self._workflows)

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def graph(self, tenant: TenantId, application: str) -> CallGraph:
        """The call graph of an application's agents."""
        key = (tenant, application)
        if key not in self._graphs:
            if len(self._graphs) >= self._limits.graphs_max:
                self._forget_graph()
            learned = self._learned.get(application)
            graph = learned.copy() if learned is not None else CallGraph(self._limits)
            self._graphs[key] = graph
            self._num_graphs[tenant] += 1
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def on_turn_began(
        self,
        tenant: TenantId,
        workflow_id: str,
        agent: str,
        session_id: SessionId | None,
        now_ns: int,
    ) -> Reaction:
        """An agent's turn began: announce its probable successors."""
        self._forget_idle(now_ns)
        workflow = self._workflow(tenant, workflow_id, agent, now_ns)
        workflow.hints.expire(now_ns)
        is_fresh = session_id not in workflow.sessions_of(agent)
        used = workflow.hints.use(agent, session_id, is_fresh=is_fresh)
        turn = workflow.begin(agent, session_id, now_ns)
        return Reaction(self._announce(workflow, turn, now_ns), used)

    def on_turn_ended(
        self,
        tenant: TenantId,
        workflow_id: str,
        agent: str,
        session_id: SessionId | None,
        now_ns: int,
        *,
        tools: tuple[str, ...] = (),
    ) -> Reaction:
        """An agent's turn ended. If it called tools, expect its session when they are done; if not,
        and it took longer than its successors' hints lasted, expect these now.
        """
        workflow = self._workflows.get((tenant, workflow_id))
        turn = workflow.end(agent, session_id, now_ns) if workflow is not None else None
        if workflow is None or turn is None:
            return Reaction()
        workflow.hints.expire(now_ns)
        if tools:
            turn = workflow.call(turn, tools, now_ns)
        return Reaction(self._announce(workflow, turn, now_ns))

    def on_workflow_over(self, tenant: TenantId, workflow_id: str) -> None:
        """End a workflow: no turn follows any more."""
        workflow = self._workflows.pop((tenant, workflow_id), None)
        if workflow is not None:
            _count_down(self._num_workflows, tenant)
            workflow.finish()
            workflow.hints.clear()

    def _announce(self, workflow: Workflow, turn: AgentTurn, now_ns: int) -> list[AgentHint]:
        hints: list[AgentHint] = []
        beside = None if is_tool(turn.agent) else turn.generation
        for successor in self._likely(workflow.graph.successors(turn.position)):
            for session_id in self._sessions(workflow, turn, successor):
                hint = self._hint(successor, session_id, is_over=turn.ended_at_ns is not None)
                is_far = (hint.arrives_in_ns or 0) > self._limits.arrival_max_ns
                if is_far or workflow.hints.is_announced(hint, beside, now_ns):
                    continue
                workflow.hints.add(hint, turn.generation, now_ns)
                hints.append(hint)
                if len(hints) >= self._limits.hints_max:
                    return hints
        return hints

    def _hint(
        self, successor: Successor, session_id: SessionId | None, *, is_over: bool
    ) -> AgentHint:
        """Args:
        is_over: the turn that it follows has ended, so that it may arrive at any time.
        """
        edge, limits = successor.edge, self._limits
        arrives_ns = late_ns = None
        if is_over:
            arrives_ns, late_ns = 0, limits.slack_ns
        elif edge is not None and edge.delays.weights:
            median_ns = edge.delays.quantile(0.5)
            late_ns = max(
                LATE_FACTOR * edge.delays.quantile(LATE_SHARE), median_ns + limits.slack_ns
            )
            arrives_ns = successor.after_ns + median_ns
            late_ns = min(successor.after_ns + late_ns, limits.arrival_max_ns + limits.slack_ns)
        return AgentHint(successor.agent, session_id, successor.chance, arrives_ns, late_ns)

    def _likely(self, successors: list[Successor]) -> Iterator[Successor]:
        """The fewest successors that cover the wanted probability, without improbable ones."""
        covered = 0.0
        for successor in successors:
            if covered >= self._limits.cover or successor.chance < self._limits.chance_min:
                return
            covered += successor.chance
            yield successor

    def _sessions(
        self, workflow: Workflow, turn: AgentTurn, successor: Successor
    ) -> list[SessionId | None]:
        """The sessions in which the successor will be called; None: a new one.

        That is the session of its last call, or, if its calls were mostly in other sessions, those
        that were not called for longest: agents that work through files one by one.
        """
        edge = successor.edge
        if is_tool(turn.agent) and successor.agent == turn.position.context[0]:
            return [turn.session_id]
        known = workflow.sessions_of(successor.agent)
        if not known or (edge is not None and edge.session == "fresh"):
            return [None]
        if edge is None:
            return [known[0]]
        if edge.session == "other":
            known.reverse()
        wanted = ceil(edge.fan_out / workflow.num_beside(turn) - ROUNDED_OFF)
        return list(known[: max(wanted, 1)])

    def _workflow(self, tenant: TenantId, workflow_id: str, agent: str, now_ns: int) -> Workflow:
        key = (tenant, workflow_id)
        if key in self._workflows and self._is_idle(self._workflows[key], now_ns):
            self.on_workflow_over(tenant, workflow_id)
        if key not in self._workflows:
            if len(self._workflows) >= self._limits.workflows_max:
                self._forget_workflow()
            graph = self.graph(tenant, application_of(agent))
            self._workflows[key] = Workflow(graph, self._limits, self.outcomes, now_ns)
            self._num_workflows[tenant] += 1
        self._workflows.move_to_end(key)
        return self._workflows[key]

    def _forget_idle(self, now_ns: int) -> None:
        for (tenant, workflow_id), workflow in list(islice(self._workflows.items(), CLOSED_MAX)):
            if not self._is_idle(workflow, now_ns):
                return
            self.on_workflow_over(tenant, workflow_id)

    def _is_idle(self, workflow: Workflow, now_ns: int) -> bool:
        return now_ns - workflow.active_at_ns > self._limits.workflow_idle_ns

    def _forget_workflow(self) -> None:
        """Forget the oldest workflow of the tenant with the most."""
        tenant, _ = self._num_workflows.most_common(1)[0]
        oldest = next(workflow_id for owner, workflow_id in self._workflows if owner == tenant)
        self.on_workflow_over(tenant, oldest)

    def _forget_graph(self) -> None:
        tenant, _ = self._num_graphs.most_common(1)[0]
        del self._graphs[next(key for key in self._graphs if key[0] == tenant)]
        _count_down(self._num_graphs, tenant)


def _count_down(counter: Counter[TenantId], tenant: TenantId) -> None:
    counter[tenant] -= 1
    if not counter[tenant]:
        del counter[tenant]
