"""`metagpt`: a company of agents that writes code, as Parrot's authors logged it: an architect,
then engineers and reviewers in turn, one of each for a file, three times over.

A round begins when all calls of the one before have ended. Each call is announced when the call
for the same file in the round before begins, with what the *other* of the two logged runs says of
how long that takes: learned on one, measured on the other.

The log's prompts carry the whole code base again each round, and share no more than the system
prompt with those before. Here each agent keeps its conversation, as the paper has it (section 2.2:
"access to the state associated with previously generated code"): to its session a round adds what
its prompt in the log has beside the system prompt. With fewer or more files than the log's eight,
prompts shrink or grow in proportion, since they quote all files.
"""

from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from random import Random
from statistics import mean
from typing import Any

from loadtest.agents.files import CHARS_A_TOKEN
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn, Workload
from loadtest.workloads.traces import records_of

FILE = "agents/parrot_metagpt_calls.jsonl.gz"
LOGGED_FILES = 8
ANSWER_MS_A_TOKEN = 20.0  # of what was learned; the paper's TPOT at load
SPREAD_NS = 10_000_000_000  # in which workflows begin


@dataclass(frozen=True, slots=True)
class Call:
    """Tokens of one call of the log: of the system prompt, which all of the role have, of what else
    was said, and of the answer."""

    role: str
    num_system: int
    num_said: int
    num_output: int


Round = tuple[Call, ...]


@cache
def load_runs() -> dict[str, tuple[Round, ...]]:
    """The two logged runs, by rounds."""
    rows = list(records_of(FILE))
    return {
        run: tuple(
            tuple(_call(row) for row in of_round)
            for _, of_round in groupby(of_run, key=lambda row: row["round"])
        )
        for run, of_run in groupby(rows, key=lambda row: row["run"])
    }


def _call(row: dict[str, Any]) -> Call:
    num_system = min(max(len(row["system"]) // CHARS_A_TOKEN, 1), row["prompt_tokens"] - 1)
    num_said = row["prompt_tokens"] - num_system
    return Call(row["role"], num_system, num_said, row["completion_tokens"])


def metagpt(
    num_users: int, duration_ns: int, seed: int, num_files: int | None = None
) -> list[Script]:
    """A workflow for each user.

    Args:
        num_files: each workflow is the longer run with so many files; None: either run, as it is.
    """
    runs = load_runs()
    scripts = []
    for number in range(num_users):
        rng = Random(f"{seed}/metagpt/{number}")
        begins_ns = round(rng.random() * min(SPREAD_NS, duration_ns // 2))
        run = (
            rng.choice(sorted(runs)) if num_files is None else max(runs, key=lambda r: len(runs[r]))
        )
        (learned,) = (rounds for name, rounds in runs.items() if name != run)
        turns = _turns(f"workflow{number}", runs[run], learned, num_files or LOGGED_FILES)
        scripts.append(Script(name=f"workflow{number}", turns=turns, begins_ns=begins_ns))
    return scripts


def with_files(num_files: int) -> Workload:
    """`metagpt` of so many files."""
    return partial(metagpt, num_files=num_files)


@cache
def learned_ns(rounds: tuple[Round, ...], role: str) -> int:
    """How long a round of this role takes: its longest answer, in the mean over the rounds."""
    longest = [max(call.num_output for call in each) for each in rounds if each[0].role == role]
    return round(mean(longest) * ANSWER_MS_A_TOKEN * 1e6)


def _turns(
    workflow: str, rounds: tuple[Round, ...], learned: tuple[Round, ...], num_files: int
) -> tuple[ScriptedTurn, ...]:
    turns: list[ScriptedTurn] = []
    before: range | None = None
    known: set[str] = set()
    for number, logged in enumerate(rounds):
        calls = _resized(logged, num_files)
        ended, before = before, range(len(turns), len(turns) + len(calls))
        for file, call in enumerate(calls):
            session = f"{workflow}/{call.role}/{file}"
            said = max(call.num_said * num_files // LOGGED_FILES, 1)
            system = () if session in known else (Part(f"system/{call.role}", call.num_system),)
            known.add(session)
            hint = None
            if ended is not None:
                role = rounds[number - 1][0].role
                start = ended[file % len(ended)]
                hint = Hint(at_start_of=start, expected_in_ns=learned_ns(learned, role))
            turns.append(
                ScriptedTurn(
                    session=session,
                    parts=(*system, Part(f"{workflow}/round{number}", said)),
                    num_output=call.num_output,
                    after=tuple(ended or ()),
                    hint=hint,
                    agent=call.role,
                )
            )
    return tuple(turns)


def _resized(calls: Round, num_files: int) -> Round:
    """As many calls as files; a round of one call stays one.

    >>> call = Call("engineer", 1, 1, 1)
    >>> len(_resized((call,) * 8, 12)), len(_resized((call,) * 8, 4)), len(_resized((call,), 4))
    (12, 4, 1)
    """
    if len(calls) == 1:
        return calls
    return tuple(calls[file % len(calls)] for file in range(num_files))
