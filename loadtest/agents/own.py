"""Traces of agents in our own form, for logs of other systems: a call a line, as JSON.

``{"workflow": "run 7", "agent": "Engineer", "start_s": 12.5, "end_s": 20.1}``, and, if they are
known, ``session`` (else one an agent), ``prompt_tokens``, ``output_tokens`` and ``tools``, a list
of names.
"""

import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from loadtest.agents.calls import AgentTrace, Call, make_trace
from shared.errors import InvalidRequest

LINES_MAX = 1_000_000


def read_calls(path: Path) -> AgentTrace:
    """A file of calls, ``.jsonl`` or ``.jsonl.gz``.

    Raises:
        InvalidRequest: it cannot be read; names the line and what is wrong there.
    """
    try:
        return make_trace(path.name, _calls(path))
    except (OSError, EOFError) as error:
        raise InvalidRequest(f"the trace {path} cannot be read: {error}") from None


def _calls(path: Path) -> Iterator[Call]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number > LINES_MAX:
                raise InvalidRequest(f"{path}: more than {LINES_MAX} lines")
            try:
                yield _call(orjson.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidRequest(f"{path}, line {number}: {error!r}") from None


def _call(row: Any) -> Call:
    workflow, agent = _text(row, "workflow"), _text(row, "agent")
    start_s, end_s = float(row["start_s"]), float(row["end_s"])
    if not (math.isfinite(start_s) and math.isfinite(end_s) and start_s <= end_s):
        raise ValueError("start_s, end_s: an end that is not before the start")
    return Call(
        workflow=workflow,
        agent=agent,
        session=_text(row, "session") if "session" in row else f"{workflow}/{agent}",
        start_s=start_s,
        end_s=end_s,
        prompt_tokens=int(row.get("prompt_tokens", 0)),
        output_tokens=int(row.get("output_tokens", 0)),
        tools=tuple(str(tool) for tool in row.get("tools", ())),
    )


def _text(row: Any, name: str) -> str:
    value = row[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: a text that is not empty")
    return value
