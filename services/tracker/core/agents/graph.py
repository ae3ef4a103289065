"""A call graph: which agent follows which, with what probability and after what delay."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.tracker.core.agents.agent_limits import AgentLimits
from services.tracker.core.agents.table import Edge, SessionKind, Table

Context = tuple[str, ...]  # the last agents, the running one last

TOOL = "tool:"  # prefix of tools' names; tools are nodes like agents
CALLER = "#caller"  # a tool's successor that called it, independent of its name
NOWHERE = "#new"  # the standing of an agent that was not called recently
STANDINGS_MAX = 16  # agents further back share one standing
RETURN_CHANCE = 0.9  # that the caller of an unknown tool continues


def is_tool(name: str) -> bool:
    """Whether a node is a tool, not an agent."""
    return name.startswith(TOOL)


def standing_of(agent: str, recent: Sequence[str]) -> str:
    """The rank of an agent among its workflow's recent ones, the last called first. It describes
    agents independent of their names.

    >>> standing_of("b", ["a", "b"]), standing_of("c", ["a", "b"])
    ('#1', '#new')
    """
    return f"#{min(recent.index(agent), STANDINGS_MAX)}" if agent in recent else NOWHERE


@dataclass(frozen=True, slots=True)
class Successor:
    """An agent that may be called next.

    Attributes:
        chance: probability, 0 to 1.
        edge: statistics of how it follows, from the most specific table that has any. None: none
            are known yet of the agent that called a tool.
        after_ns: time before `edge` begins: until a tool is called.
    """

    agent: str
    chance: float
    edge: Edge | None
    after_ns: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a turn in a call graph.

    Attributes:
        context: the agent before it, if there was one, and its own.
        standing: rank of its agent among those called recently (`standing_of`).
        recent: the workflow's agents, the last called first.
    """

    context: Context
    standing: str
    recent: tuple[str, ...] = ()

    @property
    def agent(self) -> str:
        return self.context[-1]


class CallGraph:
    """Learns turn by turn with decay, and predicts from the two last agents, else from the last,
    else from how agents follow each other in general (variable order, with back-off).

    Attributes:
        is_frozen: it does not learn any more.
    """

    def __init__(self, limits: AgentLimits) -> None:
        self.limits = limits
        self.is_frozen = False
        self._kept = 0.5 ** (1 / limits.half_life)
        self.tables: OrderedDict[Context, Table] = OrderedDict()
        self.standings: dict[str, Table] = {}
        self.everywhere = self.new_table(4 * limits.edges_max)
        self.fit = [
            1.0,
            1.0,
        ]  # decayed chances that `standings` and `everywhere` gave to actual successors

    def copy(self) -> "CallGraph":
        """An independent copy."""
        copied = CallGraph(self.limits)
        copied.is_frozen = self.is_frozen
        for context, table in self.tables.items():
            copied.tables[context] = table.copy()
        copied.standings = {name: table.copy() for name, table in self.standings.items()}
        copied.everywhere = self.everywhere.copy()
        copied.fit = self.fit.copy()
        return copied

    def new_table(self, edges_max: int = 0) -> Table:
        """An empty table with this graph's decay."""
        return Table(self._kept, edges_max or self.limits.edges_max)

    @property
    def agents(self) -> list[str]:
        """All known nodes, including tools."""
        found = {context[-1]: None for context in self.tables}
        for table in self.tables.values():
            found |= dict.fromkeys(table.edges)
        return list(found)

    def see(self, position: Position, *, by_tool: bool = False) -> None:
        """Count a turn at this position, once its successor is known, or that there is none.

        Args:
            by_tool: a tool follows, which says nothing about how agents follow each other.
        """
        if self.is_frozen:
            return
        contexts = self._contexts(position)
        if is_tool(position.agent):
            contexts.append(_of_tool(position))
        for context in contexts:
            table = self.tables.get(context)
            if table is None:
                if len(self.tables) >= self.limits.contexts_max:
                    self.tables.popitem(last=False)
                table = self.tables[context] = self.new_table()
            self.tables.move_to_end(context)
            table.see()
        if not by_tool and not is_tool(position.agent):
            self.standings.setdefault(position.standing, self.new_table(STANDINGS_MAX + 2)).see()
            self.everywhere.see()

    def credit(
        self,
        position: Position,
        agent: str,
        delay_ns: int,
        session: SessionKind | None = None,
        *,
        is_first: bool,
    ) -> None:
        """Learn that `agent` followed the turn at this position. Call `see` before.

        Args:
            delay_ns: from the start of the turn to the start of its successor.
            session: as in `Table.credit`.
            is_first: it had not followed that turn yet.
        """
        if self.is_frozen:
            return
        found = [(self.tables.get(context), agent) for context in self._contexts(position)]
        if is_tool(position.agent):
            name = CALLER if agent == position.context[0] else agent
            found.append((self.tables.get(_of_tool(position)), name))
        elif not is_tool(agent):
            standing = standing_of(agent, position.recent)
            general = self.standings.get(position.standing), self.everywhere
            for index, (table, name) in enumerate(zip(general, (standing, agent), strict=True)):
                self.fit[index] *= self._kept
                self.fit[index] += table.chance(name) if table is not None else 0.0
                found.append((table, name))
        for table, name in found:
            if table is not None:  # else it was forgotten
                table.credit(name, delay_ns, session, is_first=is_first)

    def successors(self, position: Position) -> list[Successor]:
        """The agents that may follow a turn at this position, the most probable first. The
        successors of a tool count as successors of the turn, with the tool's delay added.
        """
        found: dict[str, Successor] = {}
        for name in self._names_after(position):
            chance, edge = self._chance(position, name)
            if not is_tool(name):
                _add(found, Successor(name, chance, edge))
                continue
            tool_ns = edge.delays.quantile(0.5) if edge is not None and edge.delays.weights else 0
            behind = Position((position.agent, name), TOOL, position.recent)
            for agent in self._names_after(behind):
                if not is_tool(agent):
                    onward, edge = self._chance(behind, agent)
                    _add(found, Successor(agent, chance * onward, edge, tool_ns))
        return sorted(found.values(), key=lambda each: -each.chance)

    def forget_delays(self) -> None:
        """Forget all delays, where turns were learned without times."""
        tables = (*self.tables.values(), *self.standings.values(), self.everywhere)
        for table in tables:
            for edge in table.edges.values():
                edge.delays.weights.clear()

    def _contexts(self, position: Position) -> list[Context]:
        """The keys of the tables by names, the most specific first."""
        longest = position.context if len(position.context) == 2 else ("", *position.context)
        if is_tool(position.agent):
            return [longest]
        if not self.limits.backs_off:
            return [longest[-self.limits.order_max :]]
        return [longest[-order:] for order in range(self.limits.order_max, 0, -1)]

    def _names_after(self, position: Position) -> list[str]:
        names: dict[str, None] = {}
        for context in self._contexts(position):
            if (table := self.tables.get(context)) is not None:
                names |= dict.fromkeys(table.edges)
        if is_tool(position.agent):
            names[position.context[0]] = None
        elif self.limits.backs_off:
            names |= dict.fromkeys(self.everywhere.edges)
            names |= dict.fromkeys(position.recent)
        return list(names)

    def _chance(self, position: Position, name: str) -> tuple[float, Edge | None]:
        """The probability that `name` follows, and its edge: rather that of the last agent than
        that of the last two, which has too few observations of delays.
        """
        chance, edge = self._general_chance(position, name)
        named: Edge | None = None
        for context in reversed(self._contexts(position)):
            table = self.tables.get(context)
            if table is None:
                continue
            trust = table.trust if self.limits.backs_off else 1.0
            chance = trust * table.chance(name) + (1 - trust) * chance
            named = named or table.edges.get(name)
        return chance, named or edge

    def _general_chance(self, position: Position, name: str) -> tuple[float, Edge | None]:
        """The same from the general tables: of `name` after any agent, and of its standing."""
        if is_tool(position.agent):
            table = self.tables.get(_of_tool(position))
            if name != position.context[0]:
                return 0.0, None
            if table is None:
                return RETURN_CHANCE, None
            chance = table.trust * table.chance(CALLER) + (1 - table.trust) * RETURN_CHANCE
            return chance, table.edges.get(CALLER)
        if not self.limits.backs_off or is_tool(name):
            return 0.0, None
        by_standing = self.standings.get(position.standing)
        standing = standing_of(name, position.recent)
        first, second = self.fit
        chance = self.everywhere.chance(name) * second
        edge = self.everywhere.edges.get(name)
        # Any agent may be new: that a new one follows makes no particular one probable.
        if by_standing is not None and standing != NOWHERE:
            chance += by_standing.chance(standing) * first
            edge = by_standing.edges.get(standing, edge)
        return chance / (first + second), edge


def _of_tool(position: Position) -> Context:
    """The key of the table of how a tool's callers continue."""
    return ("", position.agent)


def _add(found: dict[str, Successor], successor: Successor) -> None:
    """Add a successor. Paths to one agent are exclusive; the more probable one gives the delay."""
    other = found.get(successor.agent)
    if other is not None:
        chance = min(other.chance + successor.chance, 1.0)
        likelier = max(other, successor, key=lambda each: each.chance)
        successor = Successor(successor.agent, chance, likelier.edge, likelier.after_ns)
    found[successor.agent] = successor
