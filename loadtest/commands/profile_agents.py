"""`symphony profile-agents`: what follows what, learned from a trace."""

from dataclasses import replace
from pathlib import Path

import orjson

from cli.base.reporting import err, out
from loadtest.agents.calls import AgentTrace, Call
from loadtest.agents.files import FOLDER, TRACES, read_trace
from loadtest.agents.own import read_calls
from loadtest.agents.replay import learn
from loadtest.agents.showing import DRAWINGS, table_of
from services.tracker.core.agents import AgentLimits, CallGraph, dump_graph
from shared.errors import InvalidRequest


def profile(trace: str, application: str, out_file: Path | None, draw: str) -> None:
    """Learn from a trace, by its name or file; save the graph and show it.

    Raises:
        InvalidRequest: the trace cannot be read, or a name cannot be.
    """
    if "/" in application:
        raise InvalidRequest("--app: a name without slashes")
    if draw not in ("table", *DRAWINGS):
        raise InvalidRequest(f"--draw: table, {' or '.join(DRAWINGS)}")
    found = _read(trace)
    if application:
        found = replace(found, calls=tuple(_of(call, application) for call in found.calls))
    for note in found.notes:
        err.print(f"[dim]{found.name}: {note}[/dim]")
    graph = learn(found, AgentLimits(), application=application)
    if out_file is not None:
        _save(graph, application, out_file)
        err.print(f"[dim]{len(found.calls)} calls, saved as {out_file}[/dim]")
    if draw == "table":
        out.print(table_of(graph))
    else:
        print(DRAWINGS[draw](graph))


def _read(trace: str) -> AgentTrace:
    if trace in TRACES:
        return read_trace(trace, FOLDER)
    path = Path(trace)
    if not path.exists():
        known = ", ".join(TRACES)
        raise InvalidRequest(f"no trace {trace!r}: use a file of calls, or one of {known}")
    for name, (file, _) in TRACES.items():
        if path.name == file:
            return read_trace(name, path.parent)
    return read_calls(path)


def _of(call: Call, application: str) -> Call:
    return replace(call, agent=f"{application}/{call.agent}")


def _save(graph: CallGraph, application: str, path: Path) -> None:
    try:
        path.write_bytes(orjson.dumps(dump_graph(graph, application), option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise InvalidRequest(f"--out {path}: {error.strerror}") from None
