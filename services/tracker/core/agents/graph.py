"""A call graph: which agent follows which, with what chance and after how long."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.tracker.core.agents.limits import AgentLimits
from services.tracker.core.agents.table import Edge, SessionKind, Table

Context = tuple[str, ...]  # the last agents, the one that runs last

TOOL = "tool:"  # before the name of a tool, which is a node as agents are
CALLER = "#caller"  # what follows a tool, whoever called it
NOWHERE = "#new"  # the place, among those called lately, of an agent that was not called yet
PLACES_MAX = 16  # further back is one place
RETURN_CHANCE = 0.9  # that the caller of a tool nothing is known of comes back


def is_tool(name: str) -> bool:
    """Whether a node is a tool, not an agent."""
    return name.startswith(TOOL)


def standing_of(agent: str, recent: Sequence[str]) -> str:
    """Where an agent stands among those of its workflow, the one called last first: what agents
    without a common name have in common.

    >>> standing_of("b", ["a", "b"]), standing_of("c", ["a", "b"])
    ('#1', '#new')
    """
    return f"#{min(recent.index(agent), PLACES_MAX)}" if agent in recent else NOWHERE


@dataclass(frozen=True, slots=True)
class Successor:
    """An agent that may be called next.

    Attributes:
        chance: that it is, 0 to 1.
        edge: what is known of how it follows; of the most telling place that knows it. None: that
            of the agent that called the tool, of which nothing is known yet.
        after_ns: what passes before `edge` begins: the way to a tool.
    """

    agent: str
    chance: float
    edge: Edge | None
    after_ns: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """Where a turn stands in a graph.

    Attributes:
        context: the agent before it, if there was one, and its own.
        standing: where its own agent stood among those called lately (`standing_of`).
        recent: the workflow's agents, the last called first.
    """

    context: Context
    standing: str
    recent: tuple[str, ...] = ()

    @property
    def agent(self) -> str:
        return self.context[-1]


class CallGraph:
    """Learns of turns one by one, forgets with them, and predicts from the two last agents, else
    from the last, else from how any agents follow each other (variable order, with back-off).

    Attributes:
        is_frozen: it stays as it is, whatever comes.
    """

    def __init__(self, limits: AgentLimits) -> None:
        self.limits = limits
        self.is_frozen = False
        self._kept = 0.5 ** (1 / limits.half_life)
        self.tables: OrderedDict[Context, Table] = OrderedDict()
        self.standings: dict[str, Table] = {}
        self.everywhere = self.new_table(4 * limits.edges_max)
        self.fit = [1.0, 1.0]  # chances that `standings` and `everywhere` gave to what came

    def copy(self) -> "CallGraph":
        """One that goes on by itself."""
        copied = CallGraph(self.limits)
        copied.is_frozen = self.is_frozen
        for context, table in self.tables.items():
            copied.tables[context] = table.copy()
        copied.standings = {name: table.copy() for name, table in self.standings.items()}
        copied.everywhere = self.everywhere.copy()
        copied.fit = self.fit.copy()
        return copied

    def new_table(self, edges_max: int = 0) -> Table:
        """An empty one that forgets as all of this graph do."""
        return Table(self._kept, edges_max or self.limits.edges_max)

    @property
    def agents(self) -> list[str]:
        """All nodes that are known, tools included."""
        found = {context[-1]: None for context in self.tables}
        for table in self.tables.values():
            found |= dict.fromkeys(table.edges)
        return list(found)

    def see(self, position: Position, *, by_tool: bool = False) -> None:
        """A turn was there, and what follows it is known, or that nothing does.

        Args:
            by_tool: a tool follows: that tells nothing of how agents follow each other.
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
            self.standings.setdefault(position.standing, self.new_table(PLACES_MAX + 2)).see()
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
        """`agent` followed the turn there, so long after that began. `see` comes before.

        Args:
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
            if table is not None:  # else forgotten since
                table.credit(name, delay_ns, session, is_first=is_first)

    def successors(self, position: Position) -> list[Successor]:
        """The agents that may follow a turn there, the likeliest first. A tool is looked through:
        what follows it follows the turn, so much later.
        """
        found: dict[str, Successor] = {}
        for name in self._names_after(position):
            chance, edge = self._chance(position, name)
            if not is_tool(name):
                _add(found, Successor(name, chance, edge))
                continue
            way_ns = edge.delays.quantile(0.5) if edge is not None and edge.delays.weights else 0
            behind = Position((position.agent, name), TOOL, position.recent)
            for agent in self._names_after(behind):
                if not is_tool(agent):
                    onward, edge = self._chance(behind, agent)
                    _add(found, Successor(agent, chance * onward, edge, way_ns))
        return sorted(found.values(), key=lambda each: -each.chance)

    def forget_delays(self) -> None:
        """It was learned from what had an order, and no times."""
        tables = (*self.tables.values(), *self.standings.values(), self.everywhere)
        for table in tables:
            for edge in table.edges.values():
                edge.delays.weights.clear()

    def _contexts(self, position: Position) -> list[Context]:
        """The tables that know places by name, the most telling first."""
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
        """That `name` follows, and the edge that tells how: rather that of the last agent than that
        of the last two, which is seen too rarely to tell a time.
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
        """What is known of `name`, whatever was before it, and of who stands where it does."""
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
        # Who was not called yet is anybody: that one of them comes makes none of them likely.
        if by_standing is not None and standing != NOWHERE:
            chance += by_standing.chance(standing) * first
            edge = by_standing.edges.get(standing, edge)
        return chance / (first + second), edge


def _of_tool(position: Position) -> Context:
    """Where it is known how a tool's callers come back, whoever they are."""
    return ("", position.agent)


def _add(found: dict[str, Successor], successor: Successor) -> None:
    """Ways to the same agent exclude each other; the likelier one tells when."""
    other = found.get(successor.agent)
    if other is not None:
        chance = min(other.chance + successor.chance, 1.0)
        likelier = max(other, successor, key=lambda each: each.chance)
        successor = Successor(successor.agent, chance, likelier.edge, likelier.after_ns)
    found[successor.agent] = successor
