"""Every trace as scripts: beside the workloads by name, those that are only replayed.

Of traces of single requests, arrivals are theirs, thinned out so that as many come as so
many people send. Of traces that count requests by time, arrivals are drawn by that.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from random import Random

from loadtest.agents.calls import AgentTrace, Call
from loadtest.agents.files import TRACES as AGENT_TRACES
from loadtest.agents.files import read_trace
from loadtest.users.texts import DIALOGUES
from loadtest.workloads import mooncake
from loadtest.workloads.burstgpt import load_sessions
from loadtest.workloads.open_loads import USER_S
from loadtest.workloads.registry import WORKLOADS
from loadtest.workloads.registry import why_absent as why_workload_absent
from loadtest.workloads.script import Part, Script, ScriptedTurn, Workload
from loadtest.workloads.traces import path_of, rows_of
from shared.errors import InvalidRequest

LMSYS = "lora/lmsys_arena_27clients_600s.csv.gz"
FUNCTIONS_2021 = "functions/azure_functions_2021_199rows.csv.gz"
WEEK = "burstgpt/burstgpt1_week1_minute_tokens.csv.gz"
DAYS = "burstgpt/burstgpt1_daily.csv"
HOURS = "burstgpt/burstgpt1_hour_of_day.csv"
FUNCTION_TOKENS = (256, 0.02, 1024)  # prompt; seconds an output token stands for; most of those
UNKNOWN_PROMPT, UNKNOWN_OUTPUT = 200, 100  # tokens of calls of which the trace does not say


def replay(name: str, num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """The scripts of a trace or a workload.

    Raises:
        InvalidRequest: there is none of this name, or its file is not there.
    """
    if why := why_absent(name):
        raise InvalidRequest(f"--trace {name}: {why}")
    return REPLAYS[name](num_users, duration_ns, seed)


def why_absent(name: str) -> str:
    """Why this cannot be replayed; empty: it can."""
    if name in WORKLOADS:
        return why_workload_absent(name)
    file = DIALOGUES.get(name) or OWN_FILES.get(name)
    if file is None:
        return f"unknown: use one of {', '.join([*REPLAYS, *DIALOGUES])}"
    return "" if path_of(file).is_file() else f"not in ../shared/traces: {file}"


Row = tuple[float, int, int, str]  # seconds, tokens of prompt and answer, tenant


@cache
def _lmsys() -> tuple[Row, ...]:
    return tuple(
        (
            float(row["t_s"]),
            max(int(row["input_tokens"]), 1),
            max(int(row["output_tokens"]), 1),
            row["client"],
        )
        for row in rows_of(LMSYS)
    )


@cache
def _functions() -> tuple[Row, ...]:
    """Calls of functions as requests that take about as long, each application an adapter."""
    num_prompt, token_s, output_max = FUNCTION_TOKENS
    rows = [
        (
            max(float(row["end_timestamp"]) - float(row["duration"]), 0.0),
            num_prompt,
            min(max(round(float(row["duration"]) / token_s), 1), output_max),
            row["app"],
        )
        for row in rows_of(FUNCTIONS_2021)
    ]
    return tuple(sorted(rows))


def _singles(load: Callable[[], tuple[Row, ...]]) -> Workload:
    def workload(num_users: int, duration_ns: int, seed: int) -> list[Script]:
        rows = load()
        rate = len(rows) / max(rows[-1][0], 1.0)
        share = min(num_users / USER_S / rate, 1.0)
        rng = Random(f"{seed}/singles")
        return [
            _single(number, *row)
            for number, row in enumerate(rows)
            if row[0] * 1e9 < duration_ns and rng.random() < share
        ]

    return workload


def _single(number: int, at_s: float, num_prompt: int, num_output: int, tenant: str) -> Script:
    name = f"request{number}"
    turn = ScriptedTurn(session=name, parts=(Part(name, num_prompt),), num_output=num_output)
    return Script(name=name, turns=(turn,), begins_ns=round(at_s * 1e9), tenant=tenant or "default")


def _curve(file: str, column: str) -> Workload:
    """The whole curve of a file within the duration, whatever time that took."""

    def workload(num_users: int, duration_ns: int, seed: int) -> list[Script]:
        weights = [float(row[column]) for row in rows_of(file)]
        rng = Random(f"{seed}/curve")
        num = max(round(num_users / USER_S * duration_ns / 1e9), 1)
        drawn = rng.choices(range(len(weights)), weights, k=num)
        at_s = sorted((at + rng.random()) / len(weights) * duration_ns / 1e9 for at in drawn)
        said = [session[0] for session in load_sessions()]
        return [
            _single(number, each_s, chosen.num_new, chosen.num_output, "")
            for number, each_s in enumerate(at_s)
            for chosen in [rng.choice(said)]
        ]

    return workload


def _agents(name: str) -> Workload:
    """Workflows of agents, one drawn for each user: who calls whom, and after how long."""

    def workload(num_users: int, duration_ns: int, seed: int) -> list[Script]:
        workflows = [calls for calls in _trace(name).workflows() if calls]
        rng = Random(f"{seed}/{name}")
        return [
            _workflow(f"workflow{number}", rng.choice(workflows), _trace(name).is_timed)
            for number in range(num_users)
        ]

    return workload


@cache
def _trace(name: str) -> AgentTrace:
    return read_trace(name)


def _workflow(name: str, calls: list[Call], is_timed: bool) -> Script:
    """A call waits for the call that ended last before it began; of traces without times, for the
    one before it."""
    turns: list[ScriptedTurn] = []
    history: dict[str, int] = {}
    for number, call in enumerate(calls):
        ended = [
            (before.end_s, place)
            for place, before in enumerate(calls[:number])
            if before.end_s <= call.start_s
        ]
        if not is_timed and number:
            ended = [(call.start_s, number - 1)]
        end_s, after = max(ended, default=(0.0, -1))
        num_output = call.output_tokens or UNKNOWN_OUTPUT
        num_new = max(call.prompt_tokens - history.get(call.session, 0), 1)
        if not call.prompt_tokens:
            num_new = UNKNOWN_PROMPT
        history[call.session] = history.get(call.session, 0) + num_new + num_output
        turns.append(
            ScriptedTurn(
                session=call.session,
                parts=(Part(f"{name}/{number}", num_new),),
                num_output=num_output,
                after=(after,) if ended else (),
                wait_ns=round((call.start_s - end_s) * 1e9) if ended else 0,
                agent=call.agent,
            )
        )
    return Script(name=name, turns=tuple(_in_turn(turns)))


def _in_turn(turns: Iterable[ScriptedTurn]) -> Iterable[ScriptedTurn]:
    """A session's turns never overlap here, though logs of some servers do."""
    last: dict[str, int] = {}
    for number, turn in enumerate(turns):
        before = last.get(turn.session)
        last[turn.session] = number
        if before is None or before in turn.after:
            yield turn
        else:
            yield replace(turn, after=(*turn.after, before))


OWN: dict[str, tuple[Workload, str]] = {
    "mooncake-arxiv": (partial(mooncake.mooncake, file=mooncake.OLDER_FILE), mooncake.OLDER_FILE),
    "lmsys": (_singles(_lmsys), LMSYS),
    "functions-2021": (_singles(_functions), FUNCTIONS_2021),
    "burstgpt-week": (_curve(WEEK, "tokens_per_s"), WEEK),
    "burstgpt-days": (_curve(DAYS, "requests"), DAYS),
    "burstgpt-hours": (_curve(HOURS, "mean_requests_per_hour"), HOURS),
    **{
        f"calls-{name}": (_agents(name), f"agents/{file}")
        for name, (file, _) in AGENT_TRACES.items()
    },
}
OWN_FILES = {name: file for name, (_, file) in OWN.items()}
REPLAYS: dict[str, Workload] = {**WORKLOADS, **{name: make for name, (make, _) in OWN.items()}}
