"""Every trace as scripts: beside the workloads by name, those that are only replayed.

Of traces of single requests, arrivals are theirs, thinned out so that as many come as so
many people send.
"""

from collections.abc import Callable
from functools import cache, partial
from random import Random

from loadtest.users.texts import DIALOGUES
from loadtest.workloads import mooncake
from loadtest.workloads.open_loads import USER_S
from loadtest.workloads.registry import WORKLOADS
from loadtest.workloads.registry import why_absent as why_workload_absent
from loadtest.workloads.script import Part, Script, ScriptedTurn, Workload
from loadtest.workloads.traces import path_of, rows_of
from shared.errors import InvalidRequest

LMSYS = "lora/lmsys_arena_27clients_600s.csv.gz"


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


OWN: dict[str, tuple[Workload, str]] = {
    "mooncake-arxiv": (partial(mooncake.mooncake, file=mooncake.OLDER_FILE), mooncake.OLDER_FILE),
    "lmsys": (_singles(_lmsys), LMSYS),
}
OWN_FILES = {name: file for name, (_, file) in OWN.items()}
REPLAYS: dict[str, Workload] = {**WORKLOADS, **{name: make for name, (make, _) in OWN.items()}}
