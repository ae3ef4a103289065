"""Announcements of successors, and their outcomes."""

from dataclasses import dataclass

from shared.ids import SessionId

ARRIVAL_SLACK_NS = 1_000_000_000  # a smaller change of the arrival time is not announced

Target = tuple[str, SessionId | None]


@dataclass(frozen=True, slots=True)
class AgentHint:
    """A turn of this agent is probably next.

    Attributes:
        session_id: None: in a session that is not known yet, so that only the agent's common prompt
            prefix can be prefetched.
        chance: probability, 0 to 1.
        arrives_in_ns: the median of earlier delays; None: unknown.
        expires_in_ns: when it is not expected any more; None: unknown.
    """

    agent: str
    session_id: SessionId | None
    chance: float
    arrives_in_ns: int | None
    expires_in_ns: int | None

    @property
    def target(self) -> Target:
        return self.agent, self.session_id


@dataclass(slots=True, eq=False)
class LiveHint:
    """A hint whose turn may still come.

    Attributes:
        sent_at_ns: when it was first announced.
        generation: the generation of turns in which it was last announced.
        is_used: its turn came. A hint for new sessions may be used by several turns.
    """

    hint: AgentHint
    sent_at_ns: int
    generation: int
    arrives_at_ns: int | None
    expires_at_ns: int | None
    is_used: bool = False


@dataclass(slots=True)
class Outcomes:
    """Counts of announcements, repeated ones included, and of their outcomes."""

    num_given: int = 0
    num_used: int = 0
    num_expired: int = 0


class LiveHints:
    """The live hints of one workflow, at most one per target.

    Args:
        outcomes: the counts of all workflows.
    """

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._live: dict[Target, LiveHint] = {}

    def __len__(self) -> int:
        return len(self._live)

    def is_announced(self, hint: AgentHint, generation: int | None, now_ns: int) -> bool:
        """Whether announcing it changes nothing: a turn of this generation has announced it, or its
        turn is expected at that time already.
        """
        live = self._live.get(hint.target)
        if live is None or live.is_used:
            return False
        if live.arrives_at_ns is None or hint.arrives_in_ns is None:
            return live.arrives_at_ns is None and hint.arrives_in_ns is None
        if live.generation == generation:
            return True
        return abs(now_ns + hint.arrives_in_ns - live.arrives_at_ns) <= ARRIVAL_SLACK_NS

    def add(self, hint: AgentHint, generation: int, now_ns: int) -> None:
        """Add an announcement, perhaps a repeated one."""
        self._outcomes.num_given += 1
        old = self._live.pop(hint.target, None)
        sent_at_ns = old.sent_at_ns if old is not None and not old.is_used else now_ns
        arrives_at_ns = expires_at_ns = None
        if hint.arrives_in_ns is not None and hint.expires_in_ns is not None:
            arrives_at_ns, expires_at_ns = now_ns + hint.arrives_in_ns, now_ns + hint.expires_in_ns
        self._live[hint.target] = LiveHint(
            hint, sent_at_ns, generation, arrives_at_ns, expires_at_ns
        )

    def use(self, agent: str, session_id: SessionId | None, *, is_fresh: bool) -> LiveHint | None:
        """A turn arrived; returns the hint that announced it.

        Args:
            is_fresh: its session is new, so that it can use the agent's prompt prefix.
        """
        live = None if session_id is None else self._live.pop((agent, session_id), None)
        if live is None and is_fresh:
            live = self._live.get((agent, None))
        if live is not None and not live.is_used:
            live.is_used = True
            self._outcomes.num_used += 1
        return live

    def expire(self, now_ns: int) -> None:
        """Remove hints whose turn did not come in time."""
        for target, live in list(self._live.items()):
            if live.expires_at_ns is not None and live.expires_at_ns < now_ns:
                del self._live[target]
                self._outcomes.num_expired += not live.is_used

    def clear(self) -> None:
        """Remove all hints: the workflow has ended."""
        self._outcomes.num_expired += sum(not live.is_used for live in self._live.values())
        self._live.clear()
