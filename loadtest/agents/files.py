"""Files of `shared/traces/agents`, each read into calls."""

import csv
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
STEP_S = 60.0  # of traces without times: long beside the slack that hints have
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
    with gzip.open(path, "rt", newline="") as file:
        if ".csv" in path.suffixes:
            yield from csv.DictReader(file)
        else:
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
    return make_trace("metagpt", calls, is_timed=True, notes=[note])


def _gap(row: dict[str, Any], after: dict[str, Any] | None) -> float | None:
    """Seconds until the next call of the same round was created, if that tells anything."""
    if after is None or (row["run"], row["round"]) != (after["run"], after["round"]):
        return None
    gap = float(after["created_unix_s"] - row["created_unix_s"])
    return gap if 0 < gap <= GAP_MAX_S else None


def _metagpt_log(path: Path) -> AgentTrace:
    """MetaGPT's own log: one call at a time. Those of which the start is unknown take what their
    tokens take at the median pace, but do not begin before the one before has ended.
    """
    rows = list(_rows(path))
    known = [row for row in rows if row["start_s"] and float(row["completion_tokens"]) > 0]
    pace = median(
        (float(row["end_s"]) - float(row["start_s"])) / float(row["completion_tokens"])
        for row in known
    )
    calls: list[Call] = []
    for row in rows:
        end_s, tokens = float(row["end_s"]), int(row["completion_tokens"])
        before_s = calls[-1].end_s if calls and calls[-1].workflow == row["run"] else 0.0
        start_s = float(row["start_s"] or max(end_s - pace * tokens, before_s))
        calls.append(
            Call(
                workflow=row["run"],
                agent=row["role"],
                session=f"{row['run']}/{row['role']}",
                start_s=start_s,
                end_s=end_s,
                prompt_tokens=int(row["prompt_tokens"]),
                output_tokens=tokens,
            )
        )
    guessed = sum(not row["start_s"] for row in rows)
    note = f"{guessed} of {len(rows)} calls without a known start: {pace * 1e3:.0f} ms a token"
    return make_trace("metagpt-log", calls, is_timed=True, notes=[note])


def _whoandwhen(kind: str) -> Callable[[Path], AgentTrace]:
    """Who speaks after whom, without times; every name has one session in a log."""

    def read(path: Path) -> AgentTrace:
        calls = [
            Call(
                workflow=row["log"],
                agent=row["name"] or row["role"],
                session=f"{row['log']}/{row['name'] or row['role']}",
                start_s=float(row["step"]) * STEP_S,
                end_s=(float(row["step"]) + 0.9) * STEP_S,
            )
            for row in _rows(path)
            if row["kind"] == kind
        ]
        return make_trace(f"whoandwhen-{kind.partition('-')[0].lower()}", calls, is_timed=False)

    return read


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
            told = sorted((step for step in steps if step["input"]), key=_at_us)
            starts = [(_at_us(step) - _at_us(told[0])) / 1e6 for step in told]
            for step, start_s, end_s in zip(told, starts, [*starts[1:], starts[-1]], strict=True):
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
        return make_trace(
            "magentic" if agent == "magagent" else agent, calls, is_timed=True, notes=notes
        )

    return read


def _at_us(step: dict[str, Any]) -> int:
    return int(step["timestamp_us"])


def _lmcache_agent(agent: str, text: str) -> str:
    """Magentic-One's agents do not say their names: what their prompts begin with tells them."""
    if agent != "magagent":
        return agent
    head = text[:400]
    if "Solve tasks using your coding" in head:
        return "Coder"
    if "summarize long documents" in head:
        return "Summarizer"
    return "Orchestrator (facts)" if "pre-survey" in head else "Orchestrator"


def _sweagent(path: Path) -> AgentTrace:
    """One agent and the commands that it runs. How long its calls took is not known, nor, of most
    commands, how long those did: the trace has an order, and no times.
    """
    calls = [
        Call(
            workflow=row["trajectory"],
            agent="sweagent",
            session=row["trajectory"],
            start_s=float(row["step"]) * STEP_S,
            end_s=(float(row["step"]) + 0.5) * STEP_S,
            tools=tuple((row["action"] or "").split()[:1]),
        )
        for row in _rows(path)
    ]
    return make_trace("sweagent", calls, is_timed=False)


def _taubench(path: Path) -> AgentTrace:
    """One agent that calls tools or talks to a user, without times."""
    calls: list[Call] = []
    for row in _rows(path):
        workflow = f"{row['task_id']}/{row['trial']}"
        for step, message in enumerate(row["messages"]):
            if message["role"] == "assistant":
                tools = message.get("tool_calls") or ()
                calls.append(
                    Call(
                        workflow=workflow,
                        agent="airline",
                        session=workflow,
                        start_s=step * STEP_S,
                        end_s=(step + 0.5) * STEP_S,
                        tools=tuple(tool["function"]["name"] for tool in tools),
                    )
                )
    return make_trace("taubench", calls, is_timed=False)


def _dynamo(path: Path) -> AgentTrace:
    """A root agent that calls scouts and a reviewer as tools, with times of all of it."""
    events = [row["event"] for row in _rows(path)]
    called: dict[str, list[tuple[float, str]]] = {}
    for event in events:
        if event["event_type"] == "tool_start":
            tool = event["tool"]
            called.setdefault(event["agent_context"]["session_id"], []).append(
                (tool["started_at_unix_ms"] / 1e3, tool["tool_class"])
            )
    ends = [event for event in events if event["event_type"] == "request_end"]
    calls: list[Call] = []
    for event in ends:
        context, request = event["agent_context"], event["request"]
        session = context["session_id"]
        start_s = request["request_received_ms"] / 1e3
        end_s = start_s + request["total_time_ms"] / 1e3
        later = [
            other["request"]["request_received_ms"] / 1e3
            for other in ends
            if other["agent_context"]["session_id"] == session
        ]
        next_s = min((at_s for at_s in later if at_s > start_s), default=float("inf"))
        tools = [name for at_s, name in called.get(session, ()) if end_s - 0.1 <= at_s < next_s]
        calls.append(
            Call(
                workflow=context.get("parent_session_id", session),
                agent=session.split(":")[1] if session.count(":") else session,
                session=session,
                start_s=start_s,
                end_s=end_s,
                prompt_tokens=request["input_tokens"],
                output_tokens=request["output_tokens"],
                tools=tuple(dict.fromkeys(tools)),
            )
        )
    return make_trace("dynamo", calls, is_timed=True)


TRACES: dict[str, tuple[str, Callable[[Path], AgentTrace]]] = {
    "metagpt": ("parrot_metagpt_calls.jsonl.gz", _parrot),
    "metagpt-log": ("metagpt_log_calls.csv.gz", _metagpt_log),
    "whoandwhen-hand": ("whoandwhen_steps.csv.gz", _whoandwhen("Hand-Crafted")),
    "whoandwhen-algorithm": ("whoandwhen_steps.csv.gz", _whoandwhen("Algorithm-Generated")),
    "magentic": ("lmcache_agent_steps.jsonl.gz", _lmcache("magagent")),
    "miniswe": ("lmcache_agent_steps.jsonl.gz", _lmcache("miniswe")),
    "sweagent": ("sweagent_demo_steps.jsonl.gz", _sweagent),
    "taubench": ("taubench_airline_gpt4o.jsonl.gz", _taubench),
    "dynamo": ("dynamo_pi_agent_requests.jsonl.gz", _dynamo),
}
