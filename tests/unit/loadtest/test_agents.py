"""Traces of agents: what files are read into, and what a replay of them shows."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtest.agents.calls import AgentTrace, Call, make_trace
from loadtest.agents.files import TRACES, read_trace
from loadtest.agents.own import read_calls
from loadtest.agents.replay import learn
from loadtest.agents.showing import dot_of, mermaid_of
from loadtest.commands.profile_agents import profile
from services.tracker.core.agents import AgentLimits, load_graph
from shared.errors import InvalidRequest

LIMITS = AgentLimits()


def call(workflow: str, agent: str, start_s: float, end_s: float, **more: Any) -> Call:
    session = more.pop("session", f"{workflow}/{agent}")
    return Call(
        workflow=workflow, agent=agent, session=session, start_s=start_s, end_s=end_s, **more
    )


def line(num_workflows: int, agents: str = "abab") -> AgentTrace:
    """Workflows of the same agents, one after another, ten seconds each."""
    calls = [
        call(f"w{number}", agent, 10.0 * step, 10.0 * step + 8, prompt_tokens=100 * step)
        for number in range(num_workflows)
        for step, agent in enumerate(agents)
    ]
    return make_trace("line", calls)


def write(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> None:
    path = folder / TRACES[name][0]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))


def test_timestamps_that_run_backwards_are_put_in_order(tmp_path: Path) -> None:
    rows = [
        {"agent": "miniswe", "session_id": "s", "timestamp_us": at_us, "input": "x", "output": ""}
        for at_us in (5_000_000, 1_000_000, 3_000_000)
    ]
    write(tmp_path, "miniswe", [*rows, rows[0] | {"input": ""}])
    trace = read_trace("miniswe", tmp_path)
    assert [each.start_s for each in trace.calls] == [0, 2, 4]
    assert "1 of 4 timestamps ran backwards" in trace.notes[0]
    assert "1 calls with no input" in trace.notes[1]


def test_a_round_of_metagpt_begins_when_the_last_one_has_ended(tmp_path: Path) -> None:
    made = [
        (0, "architect", 0),
        (1, "engineer", 9000),
        (1, "engineer", 9020),
        (2, "reviewer", 9100),
    ]
    rows = [
        {
            "run": "A", "round": place, "role": role, "file": str(at_s), "created_unix_s": at_s,
            "prompt_tokens": 10, "completion_tokens": 40,
        }
        for place, role, at_s in made
    ]  # fmt: skip
    write(tmp_path, "metagpt", rows)
    calls = read_trace("metagpt", tmp_path).calls
    # One is known to have taken 20 s for 40 tokens: so the others took as long.
    assert [(each.start_s, each.end_s) for each in calls] == [(0, 20), (20, 40), (20, 40), (40, 60)]


def test_a_trace_that_is_not_there_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no trace"):
        read_trace("other", tmp_path)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_trace("miniswe", tmp_path)
    write(tmp_path, "miniswe", [{"agent": "miniswe"}])
    with pytest.raises(InvalidRequest, match="session_id"):
        read_trace("miniswe", tmp_path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"agent": "a", "start_s": 0, "end_s": 1}, "workflow"),
        ({"workflow": "w", "agent": "", "start_s": 0, "end_s": 1}, "agent"),
        ({"workflow": "w", "agent": "a", "start_s": 2, "end_s": 1}, "start_s"),
        ({"workflow": "w", "agent": "a", "start_s": "nan", "end_s": 1}, "start_s"),
        (["w"], "line 1"),
    ],
)
def test_a_line_that_is_no_call_is_named(row: object, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(InvalidRequest, match=says):
        read_calls(path)


def test_a_trace_of_ones_own_becomes_a_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, saved = tmp_path / "mine.jsonl", tmp_path / "graph.json"
    rows = [
        {
            "workflow": f"w{number}",
            "agent": agent,
            "start_s": at_s,
            "end_s": at_s + 2,
            "tools": tools,
        }
        for number in range(4)
        for agent, at_s, tools in (("a", 0, []), ("b", 5, ["ls"]), ("b", 9, []))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    profile(str(path), "app", saved, "table")
    shown = capsys.readouterr().out
    assert "app/a" in shown
    assert "tool:ls" in shown
    application, graph = load_graph(json.loads(saved.read_text()), LIMITS)
    assert application == "app"
    assert 'label="app/b"' in dot_of(graph)
    assert '["tool:ls"]' in mermaid_of(graph)


def test_names_of_others_end_no_label() -> None:
    graph = learn(line(2, ['a"];x', "b\n"]), LIMITS)  # type: ignore[arg-type]
    assert 'label="a\'];x"' in dot_of(graph)
    assert "b\n" not in dot_of(graph).replace("];\n", "")
