"""Files of `shared/traces/agents`, each read into calls."""

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from cli.base.children import ROOT
from loadtest.agents.calls import AgentTrace, Call, make_trace
from shared.errors import InvalidRequest

FOLDER = ROOT.parent / "shared" / "traces" / "agents"
GAP_MAX_S = 120.0  # what passes between two calls of a log that was left alone is no call
CHARS_A_TOKEN = 4  # where a trace has text only: OpenAI's rule of thumb for English


def read_trace(name: str, folder: Path = FOLDER) -> AgentTrace:
    """One of `TRACES`.

    Raises:
        InvalidRequest: there is none of this name, or its file is not there or is damaged.
    """
    if name not in TRACES:
        raise InvalidRequest(f"no trace {name!r}: use one of {', '.join(TRACES)}")
    file, read = TRACES[name]
    path = folder / file
    try:
        return read(path)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"the trace {path} cannot be read: {error!r}") from None


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path) as file:
        yield from map(json.loads, file)


def _parrot(path: Path) -> AgentTrace:
    """MetaGPT as Parrot's authors logged it. The calls of a round are independent, and were logged
    one after another: each takes until the next is created, or, where the log was left alone or a
    round ends, what its tokens take at the median pace. A round begins when the last one has ended.
    """
    rows = list(_rows(path))
    gaps = [_gap(row, after) for row, after in zip(rows, [*rows[1:], None], strict=True)]
    pace = median(
        gap / row["completion_tokens"] for row, gap in zip(rows, gaps, strict=True) if gap
    )
    calls: list[Call] = []
    start_s = end_s = 0.0
    place = None
    for row, gap in zip(rows, gaps, strict=True):
        if place != (row["run"], row["round"]):
            is_new = place is None or place[0] != row["run"]
            start_s = end_s = 0.0 if is_new else end_s
            place = (row["run"], row["round"])
        took_s = gap or pace * row["completion_tokens"]
        end_s = max(end_s, start_s + took_s)
        calls.append(
            Call(
                workflow=row["run"],
                agent=row["role"],
                session=f"{row['run']}/{row['role']}/{row['file']}",
                start_s=start_s,
                end_s=start_s + took_s,
                prompt_tokens=row["prompt_tokens"],
                output_tokens=row["completion_tokens"],
            )
        )
    guessed = sum(not gap for gap in gaps)
    note = f"{guessed} of {len(rows)} calls without a known duration: {pace * 1e3:.0f} ms a token"
    return make_trace("metagpt", calls, notes=[note])


def _gap(row: dict[str, Any], after: dict[str, Any] | None) -> float | None:
    """Seconds until the next call of the same round was created, if that means anything."""
    if after is None or (row["run"], row["round"]) != (after["run"], after["round"]):
        return None
    gap = float(after["created_unix_s"] - row["created_unix_s"])
    return gap if 0 < gap <= GAP_MAX_S else None


def _lmcache(agent: str) -> Callable[[Path], AgentTrace]:
    """Sessions whose input grows by appending. Some timestamps run backwards in the file: put in
    order by them, inputs do grow. How long a call took is unknown: it is taken to end when the next
    one begins.
    """

    def read(path: Path) -> AgentTrace:
        rows = [row for row in _rows(path) if row["agent"] == agent]
        by_session: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_session.setdefault(row["session_id"], []).append(row)
        num_backwards = num_empty = 0
        calls: list[Call] = []
        for session, steps in by_session.items():
            times = [_at_us(step) for step in steps]
            num_backwards += sum(after < before for before, after in pairwise(times))
            num_empty += sum(not step["input"] for step in steps)
            known = sorted((step for step in steps if step["input"]), key=_at_us)
            starts = [(_at_us(step) - _at_us(known[0])) / 1e6 for step in known]
            for step, start_s, end_s in zip(known, starts, [*starts[1:], starts[-1]], strict=True):
                name = _lmcache_agent(agent, step["input"])
                calls.append(
                    Call(
                        workflow=session,
                        agent=name,
                        session=f"{session}/{name}",
                        start_s=start_s,
                        end_s=end_s,
                        prompt_tokens=len(step["input"]) // CHARS_A_TOKEN,
                        output_tokens=len(step["output"]) // CHARS_A_TOKEN,
                    )
                )
        notes = [
            f"{num_backwards} of {len(rows)} timestamps ran backwards: put in order",
            f"{num_empty} calls with no input: left out",
        ]
        return make_trace("magentic" if agent == "magagent" else agent, calls, notes=notes)

    return read


def _at_us(step: dict[str, Any]) -> int:
    return int(step["timestamp_us"])


def _lmcache_agent(agent: str, text: str) -> str:
    """Magentic-One's agents do not say their names: their prompts begin differently."""
    if agent != "magagent":
        return agent
    head = text[:400]
    if "Solve tasks using your coding" in head:
        return "Coder"
    if "summarize long documents" in head:
        return "Summarizer"
    return "Orchestrator (facts)" if "pre-survey" in head else "Orchestrator"


TRACES: dict[str, tuple[str, Callable[[Path], AgentTrace]]] = {
    "metagpt": ("parrot_metagpt_calls.jsonl.gz", _parrot),
    "magentic": ("lmcache_agent_steps.jsonl.gz", _lmcache("magagent")),
    "miniswe": ("lmcache_agent_steps.jsonl.gz", _lmcache("miniswe")),
}
