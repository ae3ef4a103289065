"""A call graph on a terminal, or as a text that other programs draw."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from cli.chat.sanitise import one_line
from services.tracker.core.agents import CallGraph
from services.tracker.core.agents.graph import CALLER
from services.tracker.core.agents.table import Edge

CHANCE_MIN = 0.01  # rarer edges are left out of drawings


@dataclass(frozen=True, slots=True)
class Arrow:
    """One edge of a drawing: what follows a node, with what chance and after how long, s; None:
    that is not known.
    """

    start: str
    end: str
    chance: float
    median_s: float | None
    late_s: float | None

    @property
    def label(self) -> str:
        """What is written at the arrow.

        >>> Arrow("a", "b", 0.5, 1.25, 3.0).label
        '50% 1.2 s'
        """
        return f"{self.chance:.0%}" + ("" if self.median_s is None else f" {self.median_s:.1f} s")


def arrows(graph: CallGraph) -> list[Arrow]:
    """Edges between single nodes, the likeliest of each first."""
    found = []
    for context, table in graph.tables.items():
        called_by = len(context) == 2 and context[1].startswith("tool:") and context[0]
        if len(context) != 1 and not called_by:
            continue  # the graph of pairs is not drawn
        for name, edge in table.edges.items():
            if table.chance(name) >= CHANCE_MIN and name != CALLER:
                median_s, late_s = _quantile_s(edge, 0.5), _quantile_s(edge, 0.95)
                found.append(Arrow(context[-1], name, table.chance(name), median_s, late_s))
    return sorted(found, key=lambda arrow: (arrow.start, -arrow.chance))


def table_of(graph: CallGraph) -> Table:
    """One line an edge."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("after")
    table.add_column("comes")
    for title in ("chance", "median s", "p95 s"):
        table.add_column(title, justify="right")
    before = ""
    for arrow in arrows(graph):
        start = arrow.start if arrow.start != before else ""
        before = arrow.start
        times = ("" if each is None else f"{each:.1f}" for each in (arrow.median_s, arrow.late_s))
        numbers = f"{arrow.chance:.0%}", *times
        table.add_row(*(Text(one_line(cell)) for cell in (start, arrow.end, *numbers)))
    return table


def dot_of(graph: CallGraph) -> str:
    """For Graphviz (``dot -Tsvg``)."""
    names = _numbers(graph)
    lines = ["digraph agents {", "  rankdir=LR;"]
    for name, number in names.items():
        shape = "box" if name.startswith("tool:") else "ellipse"
        lines.append(f"  n{number} [label={_quoted(name)}, shape={shape}];")
    for arrow in arrows(graph):
        ends = f"n{names[arrow.start]} -> n{names[arrow.end]}"
        lines.append(f"  {ends} [label={_quoted(arrow.label)}];")
    return "\n".join([*lines, "}"])


def mermaid_of(graph: CallGraph) -> str:
    """For pages that draw Mermaid, as GitHub's do."""
    names = _numbers(graph)
    lines = ["flowchart LR"]
    for name, number in names.items():
        left, right = ("[", "]") if name.startswith("tool:") else ("(", ")")
        lines.append(f"  n{number}{left}{_quoted(name)}{right}")
    for arrow in arrows(graph):
        lines.append(f"  n{names[arrow.start]} -->|{_quoted(arrow.label)}| n{names[arrow.end]}")
    return "\n".join(lines)


DRAWINGS: dict[str, Callable[[CallGraph], str]] = {"dot": dot_of, "mermaid": mermaid_of}


def _quantile_s(edge: Edge, share: float) -> float | None:
    return edge.delays.quantile(share) / 1e9 if edge.delays.weights else None


def _numbers(graph: CallGraph) -> dict[str, int]:
    return {name: number for number, name in enumerate(_nodes(graph))}


def _nodes(graph: CallGraph) -> Iterator[str]:
    found: dict[str, None] = {}
    for arrow in arrows(graph):
        found |= {arrow.start: None, arrow.end: None}
    return iter(found)


def _quoted(text: str) -> str:
    """Names are others': nothing in them ends the label."""
    return '"' + one_line(text).replace("\\", "/").replace('"', "'") + '"'
