"""A call graph as JSON: `symphony profile-agents` writes it, the tracker reads it."""

import math
from collections.abc import Mapping
from typing import Any

from services.tracker.core.agents.agent_limits import AgentLimits
from services.tracker.core.agents.delays import LAST_BUCKET, Delays
from services.tracker.core.agents.graph import CallGraph
from services.tracker.core.agents.table import WEIGHTS, Edge, Table
from shared.errors import ConfigError

FORMAT = "symphony-agent-graph"
VERSION = 1
NAME_CHARS_MAX = 256


def dump_graph(graph: CallGraph, application: str) -> dict[str, Any]:
    """The JSON object that `load_graph` reads."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "application": application,
        "fit": graph.fit,
        "tables": [
            {"context": list(context), **_dump_table(table)}
            for context, table in graph.tables.items()
        ],
        "standings": [
            {"standing": name, **_dump_table(table)} for name, table in graph.standings.items()
        ],
        "everywhere": _dump_table(graph.everywhere),
    }


def load_graph(data: object, limits: AgentLimits) -> tuple[str, CallGraph]:
    """A graph and its application; parts above `limits` are left out.

    Raises:
        ConfigError: it is no graph, has another version, or a value in it is invalid.
    """
    root = _mapping(data, "the file")
    if root.get("format") != FORMAT:
        raise ConfigError(f"this is no call graph: its `format` is not {FORMAT!r}")
    if root.get("version") != VERSION:
        raise ConfigError(f"`version` is {root.get('version')!r}: only {VERSION} is known")
    application = _name(root.get("application"), "application", may_be_empty=True)
    graph = CallGraph(limits)
    graph.fit = [_number(each, "fit") for each in _list(root.get("fit"), "fit")]
    if len(graph.fit) != 2:
        raise ConfigError("`fit` must have two numbers")
    for each in _list(root.get("tables"), "tables")[-limits.contexts_max :]:
        entry = _mapping(each, "tables")
        names = _list(entry.get("context"), "context")
        if not 1 <= len(names) <= 2:
            raise ConfigError("`context` must have one or two names")
        context = tuple(_name(name, "context", may_be_empty=True) for name in names)
        graph.tables[context] = _load_table(entry, graph.new_table(), limits.edges_max)
    for each in _list(root.get("standings"), "standings")[: limits.contexts_max]:
        entry = _mapping(each, "standings")
        name = _name(entry.get("standing"), "standing")
        graph.standings[name] = _load_table(entry, graph.new_table(), limits.edges_max)
    everywhere = _mapping(root.get("everywhere"), "everywhere")
    _load_table(everywhere, graph.everywhere, 4 * limits.edges_max)
    return application, graph


def _dump_table(table: Table) -> dict[str, Any]:
    return {
        "num_turns": table.num_turns,
        "edges": [
            {
                "to": name,
                **{weight: getattr(edge, weight) for weight in WEIGHTS},
                "delays": {str(bucket): each for bucket, each in edge.delays.weights.items()},
            }
            for name, edge in table.edges.items()
        ],
    }


def _load_table(entry: Mapping[str, object], table: Table, edges_max: int) -> Table:
    table.num_turns = _number(entry.get("num_turns"), "num_turns")
    for each in _list(entry.get("edges"), "edges")[:edges_max]:
        found = _mapping(each, "edges")
        delays = _mapping(found.get("delays"), "delays")
        weights = {_bucket(key): _number(value, "delays") for key, value in delays.items()}
        edge = Edge(delays=Delays(weights))
        for weight in WEIGHTS:
            setattr(edge, weight, _number(found.get(weight), weight))
        table.edges[_name(found.get("to"), "to")] = edge
    return table


def _bucket(key: object) -> int:
    if isinstance(key, str) and key.isdecimal() and int(key) <= LAST_BUCKET:
        return int(key)
    raise ConfigError(f"`delays`: {key!r} is no bucket from 0 to {LAST_BUCKET}")


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(f"`{what}` must be an object")
    return value


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise ConfigError(f"`{what}` must be a list")
    return value


def _number(value: object, what: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:  # type: ignore[operator, arg-type]
        raise ConfigError(f"`{what}` must be a number from 0 on, not {value!r}")
    return float(value)  # type: ignore[arg-type]


def _name(value: object, what: str, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > NAME_CHARS_MAX:
        raise ConfigError(f"`{what}` must be a name of at most {NAME_CHARS_MAX} characters")
    if not value and not may_be_empty:
        raise ConfigError(f"`{what}` must not be empty")
    return value
