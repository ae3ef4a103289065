"""Agents whose sessions grow by what tools answer: `lmcache-agents`, `sweagent`, `taubench`.

What a tool or a user answers is appended, and takes its time. Times are known for some only:

- `lmcache-agents`: mini-swe-agent's and Magentic-One's calls have instants. Some run backwards, and
  are put in order (`loadtest.agents.files`); a gap holds the call and the tool, so a tool takes
  what is left when the answer came at `LOGGED_MS_A_TOKEN`. Most prompts (84%) hold less than all
  that was said and answered before: agents drop what they thought. Sessions keep it here.
- `sweagent`: 40 commands of 227 have a duration; the others have one of those.
- `taubench`: no times: tools take one of `sweagent`'s, and the user reads and types.

An agent's next turn is sure while its tool runs, so it is announced when the tool begins.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, pairwise
from random import Random
from typing import Any

from loadtest.agents.files import CHARS_A_TOKEN, read_trace
from loadtest.workloads.people import Person, draw_person, words_of
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn, Workload
from loadtest.workloads.traces import records_of

LMCACHE = "agents/lmcache_agent_steps.jsonl.gz"
SWEAGENT = "agents/sweagent_demo_steps.jsonl.gz"
TAUBENCH = "agents/taubench_airline_gpt4o.jsonl.gz"
ANSWER_MS_A_TOKEN = 20.0  # the paper's TPOT at load: how many turns fill a duration
LOGGED_MS_A_TOKEN = 8.0  # the tenth percentile of gaps over the tokens of the answer in them


@dataclass(frozen=True, slots=True)
class Step:
    """One call of an agent.

    Attributes:
        num_new, num_output: tokens.
        wait_s: since the answer before; None: as long as some tool takes.
        by_user: a person, and no tool, has said what is new.
    """

    session: str
    agent: str
    num_new: int
    num_output: int
    wait_s: float | None = 0.0
    by_user: bool = False


Steps = tuple[Step, ...]


@cache
def load_lmcache() -> tuple[Steps, ...]:
    """By session of the file. Where a prompt is shorter than all before it, one token is new."""
    found: list[Steps] = []
    for name in ("miniswe", "magentic"):
        for calls in read_trace(name).workflows():
            history: dict[str, int] = {}
            steps: list[Step] = []
            for before, call in pairwise([None, *calls]):
                assert call is not None
                num_output = max(call.output_tokens, 1)
                num_new = max(call.prompt_tokens - history.get(call.session, 0), 1)
                history[call.session] = history.get(call.session, 0) + num_new + num_output
                wait_s = 0.0
                if before is not None:
                    answer_s = before.output_tokens * LOGGED_MS_A_TOKEN / 1e3
                    wait_s = max(call.start_s - before.start_s - answer_s, 0.0)
                steps.append(Step(call.session, call.agent, num_new, num_output, wait_s))
            found.append(tuple(steps))
    return tuple(found)


@cache
def load_sweagent() -> tuple[Steps, ...]:
    """By trajectory: an answer is thought and command, what is new is what the command printed."""
    rows = list(records_of(SWEAGENT))
    return tuple(
        tuple(_sweagent_steps(list(steps)))
        for _, steps in groupby(rows, key=lambda row: row["trajectory"])
    )


def _sweagent_steps(rows: list[dict[str, Any]]) -> Iterator[Step]:
    for before, row in pairwise([None, *rows]):
        assert row is not None
        said = "" if before is None else before["observation"] or ""
        yield Step(
            row["trajectory"],
            "sweagent",
            _tokens(said),
            _tokens((row["response"] or "") + (row["action"] or "")),
            0.0 if before is None else before["execution_time_s"],
        )


@cache
def load_taubench() -> tuple[Steps, ...]:
    """By dialogue."""
    found: list[Steps] = []
    for row in records_of(TAUBENCH):
        steps: list[Step] = []
        name, said, by_user = f"{row['task_id']}/{row['trial']}", "", True
        for message in row["messages"]:
            text = (message.get("content") or "") + str(message.get("tool_calls") or "")
            if message["role"] != "assistant":
                said, by_user = said + text, message["role"] != "tool"
                continue
            wait_s = 0.0 if not steps else None
            steps.append(Step(name, "airline", _tokens(said), _tokens(text), wait_s, by_user))
            said = ""
        found.append(tuple(steps))
    return tuple(found)


def _tokens(text: str) -> int:
    return max(len(text) // CHARS_A_TOKEN, 1)


@cache
def tool_seconds() -> tuple[float, ...]:
    """Of `sweagent`'s commands, as far as they are known."""
    times = (row["execution_time_s"] for row in records_of(SWEAGENT))
    return tuple(float(each) for each in times if each)


def workload(load: Callable[[], tuple[Steps, ...]]) -> Workload:
    """Everybody runs one workflow after the other, each drawn from the file's."""
    return partial(_scripts, load)


def _scripts(
    load: Callable[[], tuple[Steps, ...]], num_users: int, duration_ns: int, seed: int
) -> list[Script]:
    workflows = [steps for steps in load() if steps]
    scripts = []
    for number in range(num_users):
        rng = Random(f"{seed}/agents/{number}")
        turns = tuple(_turns(f"agent{number}", workflows, duration_ns, rng))
        begins_ns = round(rng.random() * duration_ns / 10)
        scripts.append(Script(name=f"agent{number}", turns=turns, begins_ns=begins_ns))
    return scripts


def _turns(
    name: str, workflows: Iterable[Steps], duration_ns: int, rng: Random
) -> Iterator[ScriptedTurn]:
    person = draw_person(rng)
    workflows = list(workflows)
    elapsed_ns = number = num_turns = 0
    while elapsed_ns < duration_ns:
        for place, step in enumerate(rng.choice(workflows)):
            wait_ns = _wait_ns(step, person, rng) if place else 0
            elapsed_ns += wait_ns + round(step.num_output * ANSWER_MS_A_TOKEN * 1e6)
            yield ScriptedTurn(
                session=f"{name}/{number}/{step.session}",
                parts=(Part(f"{name}/{number}/{place}", step.num_new),),
                num_output=step.num_output,
                after=(num_turns - 1,) if num_turns else (),
                wait_ns=wait_ns,
                hint=Hint(lead_ns=wait_ns) if place else None,
                agent=step.agent,
            )
            num_turns += 1
        number += 1


def _wait_ns(step: Step, person: Person, rng: Random) -> int:
    if step.by_user:
        return person.typing_ns(words_of(step.num_new))
    return round((rng.choice(tool_seconds()) if step.wait_s is None else step.wait_s) * 1e9)
