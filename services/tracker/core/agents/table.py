"""The successors at one position of a call graph: decaying counts."""

from dataclasses import dataclass, field, replace
from typing import Literal

from services.tracker.core.agents.delays import Delays

SessionKind = Literal["again", "other", "fresh"]
WEIGHTS = ("num_followed", "num_calls", "num_again", "num_other", "num_fresh")


@dataclass(slots=True)
class Edge:
    """One successor. All weights decay with each turn at its position.

    Attributes:
        num_followed: turns that it followed at least once.
        num_calls: its calls; more than `num_followed` where a turn fans out.
        num_again, num_other, num_fresh: its later calls in a workflow by session: that of its last
            call, another known one, or a new one.
        delays: from the start of one turn to the start of the next.
    """

    num_followed: float = 0.0
    num_calls: float = 0.0
    num_again: float = 0.0
    num_other: float = 0.0
    num_fresh: float = 0.0
    delays: Delays = field(default_factory=Delays)

    @property
    def fan_out(self) -> float:
        """Mean number of its calls after a turn that it follows."""
        return self.num_calls / self.num_followed if self.num_followed > 0 else 1.0

    @property
    def session(self) -> SessionKind:
        """The kind of session in which it is mostly called."""
        if self.num_fresh > self.num_again + self.num_other:
            return "fresh"
        return "again" if self.num_again >= self.num_other else "other"


class Table:
    """The successors at one position.

    Args:
        kept: factor by which every weight decays at each turn.
        edges_max: above this the rarest successor is forgotten.
    """

    def __init__(self, kept: float, edges_max: int) -> None:
        self._kept = kept
        self._edges_max = edges_max
        self.num_turns = 0.0
        self.edges: dict[str, Edge] = {}

    def copy(self) -> "Table":
        """An independent copy."""
        copied = Table(self._kept, self._edges_max)
        copied.num_turns = self.num_turns
        for name, edge in self.edges.items():
            delays = Delays(edge.delays.weights.copy())
            copied.edges[name] = replace(edge, delays=delays)
        return copied

    def see(self) -> None:
        """Count a turn, once its successor is known, or that there is none."""
        self.num_turns = self.num_turns * self._kept + 1.0
        for edge in self.edges.values():
            for weight in WEIGHTS:
                setattr(edge, weight, getattr(edge, weight) * self._kept)

    def credit(
        self, successor: str, delay_ns: int, session: SessionKind | None, *, is_first: bool
    ) -> None:
        """Learn that `successor` followed a counted turn.

        Args:
            session: the kind of its session; None: the agent is new to its workflow.
            is_first: it had not followed that turn yet.
        """
        edge = self.edges.get(successor)
        if edge is None:
            if len(self.edges) >= self._edges_max:
                rarest = min(self.edges, key=lambda name: self.edges[name].num_followed)
                del self.edges[rarest]
            edge = self.edges[successor] = Edge()
        edge.num_followed += is_first
        edge.num_calls += 1.0
        edge.num_again += session == "again"
        edge.num_other += session == "other"
        edge.num_fresh += session == "fresh"
        edge.delays.add(delay_ns, self._kept)

    def chance(self, successor: str) -> float:
        """Probability that it follows a turn here, 0 to 1."""
        edge = self.edges.get(successor)
        if edge is None or self.num_turns <= 0:
            return 0.0
        return min(edge.num_followed / self.num_turns, 1.0)

    @property
    def trust(self) -> float:
        """Weight of this table in a prediction, 0 to 1: low after few turns, or if their successors
        were always different (Witten and Bell's estimate, as in PPM-C).
        """
        if self.num_turns <= 0:
            return 0.0
        return self.num_turns / (self.num_turns + max(len(self.edges), 1))
