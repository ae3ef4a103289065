"""Reads call graphs that were learned before, from files."""

from pathlib import Path

import orjson

from services.tracker.core.agents import AgentLimits, CallGraph, load_graph
from shared.errors import ConfigError

FILE_BYTES_MAX = 64 * 2**20


def read_graphs(path: Path, limits: AgentLimits) -> dict[str, CallGraph]:
    """By application: what ``symphony profile-agents --out`` wrote, a file or a folder of them.

    Raises:
        ConfigError: a file cannot be read or is no call graph, or two are of one application; names
            the file.
    """
    found: dict[str, CallGraph] = {}
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            if file.stat().st_size > FILE_BYTES_MAX:
                raise ConfigError(f"larger than {FILE_BYTES_MAX >> 20} MiB")
            application, graph = load_graph(orjson.loads(file.read_bytes()), limits)
        except (OSError, orjson.JSONDecodeError, ConfigError) as error:
            why = error.message if isinstance(error, ConfigError) else str(error)
            raise ConfigError(f"SYMPHONY_AGENT_GRAPHS: {file}: {why}") from None
        if application in found:
            raise ConfigError(
                f"SYMPHONY_AGENT_GRAPHS: {file}: another file has application {application!r}, too"
            )
        found[application] = graph
    return found
