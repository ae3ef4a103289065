"""One running workflow: which turns follow which, and in which sessions."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.tracker.core.agents.agent_limits import AgentLimits
from services.tracker.core.agents.graph import (
    TOOL,
    CallGraph,
    Context,
    Position,
    is_tool,
    standing_of,
)
from services.tracker.core.agents.hints import LiveHints, Outcomes
from services.tracker.core.agents.table import SessionKind
from shared.ids import SessionId

FOLLOWED_MAX = 16  # turns of one generation that are learned from
AGENTS_MAX = 32  # recently called agents, which define an agent's standing


@dataclass(slots=True, eq=False)
class AgentTurn:
    """A turn of an agent, or the tool call that a turn ended with.

    Attributes:
        generation: turns of one generation run concurrently, after those of the one before.
        followed_by: agents that followed it.
        is_seen: the graph has counted it, or does not learn from it.
    """

    position: Position
    session_id: SessionId | None
    generation: int
    began_at_ns: int
    ended_at_ns: int | None = None
    followed_by: set[str] = field(default_factory=set)
    is_seen: bool = False

    @property
    def agent(self) -> str:
        return self.position.agent


class Workflow:
    """Attributes:
    graph: the call graph that learns from its turns.
    hints: its live announcements.
    """

    def __init__(
        self, graph: CallGraph, limits: AgentLimits, outcomes: Outcomes, now_ns: int
    ) -> None:
        self.graph = graph
        self.hints = LiveHints(outcomes)
        self.active_at_ns = now_ns
        self._limits = limits
        self._turns: list[AgentTurn] = []
        self._recent: list[str] = []
        self._sessions: OrderedDict[SessionId, str] = OrderedDict()  # last called last

    def begin(self, agent: str, session_id: SessionId | None, now_ns: int) -> AgentTurn:
        """A turn began: learn which turns it follows."""
        self.active_at_ns = now_ns
        self._end_older(session_id, now_ns)
        before = self._before(session_id)
        session = self._kind_of(agent, session_id, before)
        for turn in before[:FOLLOWED_MAX]:
            self._follow(turn, agent, now_ns, session)
        for turn in before[FOLLOWED_MAX:]:
            turn.is_seen = True  # neither its successors nor their absence is learned
        generation = before[-1].generation + 1 if before else 0
        turn = AgentTurn(self._position(agent, before), session_id, generation, now_ns)
        self._remember(turn)
        if session_id is not None:
            self._sessions[session_id] = agent
            self._sessions.move_to_end(session_id)
            if len(self._sessions) > self._limits.workflow_sessions_max:
                self._sessions.popitem(last=False)
        return turn

    def end(self, agent: str, session_id: SessionId | None, now_ns: int) -> AgentTurn | None:
        """The agent's turn in this session ended; None if it is unknown."""
        self.active_at_ns = now_ns
        for turn in reversed(self._turns):
            is_it = turn.agent == agent and turn.session_id == session_id
            if is_it and turn.ended_at_ns is None:
                turn.ended_at_ns = now_ns
                return turn
        return None

    def call(self, turn: AgentTurn, tools: Iterable[str], now_ns: int) -> AgentTurn:
        """A turn ended with calls of these tools, which count as one successor."""
        name = TOOL + "+".join(dict.fromkeys(tools))
        self._follow(turn, name, now_ns)
        position = Position((turn.agent, name), TOOL, tuple(self._recent))
        call = AgentTurn(position, turn.session_id, turn.generation, now_ns)
        self._remember(call)
        return call

    def finish(self) -> None:
        """The workflow ended: nothing follows its last turns."""
        for turn in self._turns:
            self._see(turn)
        self._turns.clear()

    def sessions_of(self, agent: str) -> list[SessionId]:
        """Sessions in which the agent was called, the last one first."""
        return [session for session, name in reversed(self._sessions.items()) if name == agent]

    def num_beside(self, turn: AgentTurn) -> int:
        """Number of turns of its generation, including itself."""
        return sum(each.generation == turn.generation for each in self._turns)

    def _position(self, agent: str, before: list[AgentTurn]) -> Position:
        context: Context = (before[-1].agent, agent) if before else (agent,)
        standing = standing_of(agent, self._recent)
        if agent in self._recent:
            self._recent.remove(agent)
        self._recent.insert(0, agent)
        del self._recent[AGENTS_MAX:]
        return Position(context, standing, tuple(self._recent))

    def _before(self, session_id: SessionId | None) -> list[AgentTurn]:
        """The turns that a new one of this session follows, in the order of their ends: the tool
        call that the session waits for, or else the latest generation that has ended.
        """
        for turn in reversed(self._turns):
            if session_id is not None and turn.session_id == session_id and is_tool(turn.agent):
                if turn.ended_at_ns is None:
                    return [turn]
                break
        ended = [turn for turn in self._turns if turn.ended_at_ns is not None]
        latest = max((turn.generation for turn in ended), default=0)
        found = [turn for turn in ended if turn.generation == latest and not is_tool(turn.agent)]
        return sorted(found, key=lambda turn: turn.ended_at_ns or 0)

    def _kind_of(
        self, agent: str, session_id: SessionId | None, before: list[AgentTurn]
    ) -> SessionKind | None:
        """The kind of session; None: this generation is the first that calls the agent."""
        latest = before[-1].generation if before else 0
        is_known = any(turn.agent == agent and turn.generation <= latest for turn in self._turns)
        if not is_known or session_id is None:
            return None
        sessions = self.sessions_of(agent)
        if session_id not in sessions:
            return "fresh"
        return "again" if sessions[0] == session_id else "other"

    def _follow(
        self, turn: AgentTurn, agent: str, now_ns: int, session: SessionKind | None = None
    ) -> None:
        self._see(turn, by_tool=is_tool(agent))
        is_first = agent not in turn.followed_by
        delay_ns = now_ns - turn.began_at_ns
        self.graph.credit(turn.position, agent, delay_ns, session, is_first=is_first)
        turn.followed_by.add(agent)
        if is_tool(turn.agent) and turn.ended_at_ns is None:
            turn.ended_at_ns = now_ns

    def _see(self, turn: AgentTurn, *, by_tool: bool = False) -> None:
        if not turn.is_seen:
            turn.is_seen = True
            self.graph.see(turn.position, by_tool=by_tool)

    def _end_older(self, session_id: SessionId | None, now_ns: int) -> None:
        """End turns whose end was not reported: older ones of the session, and those too old."""
        for turn in self._turns:
            if turn.ended_at_ns is None and not is_tool(turn.agent):
                is_same = session_id is not None and turn.session_id == session_id
                if is_same or now_ns - turn.began_at_ns > self._limits.turn_ns:
                    turn.ended_at_ns = now_ns

    def _remember(self, turn: AgentTurn) -> None:
        self._turns.append(turn)
        if len(self._turns) > self._limits.workflow_turns_max:
            self._see(self._turns.pop(0))
