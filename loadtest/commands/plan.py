"""`symphony plan`: what it would take to serve so many people."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from cli.base.called import hint
from cli.start.gpus import GpusUnknown, visible_gpus
from loadtest.planning.gpus import derive_profile
from loadtest.planning.model_sizes import sizes_of
from loadtest.planning.plan import AT_ONCE, Question, make_plan
from loadtest.planning.summary import summarize
from loadtest.planning.trial import simulate
from shared.errors import InvalidRequest, SymphonyError
from shared.profiles import PROFILES, LatencyProfile, load_profile

DEFAULT_GPU = "h100"
EMULATED_MAX = 16  # workers that one machine can emulate with ease
TURNS_FEW = 100  # of which a percentile is of few
SOURCES = {
    "gpu": "on the GPU, all of its layers",
    "host_memory": "in the host's memory, some layers",
    "disk": "on the host's disk, some layers",
    "other_hosts": "on another host",
    "recomputed": "computed again",
}


def profile_of(model: str, gpu: str | None, models: Path) -> LatencyProfile:
    """What a model's passes take: a known profile's, a file's, or by the model's size and a GPU.

    Raises:
        InvalidRequest: `gpu` says something that the profile says already, or is not known.
        ConfigError: there is no such model.
    """
    if _is_profile(model):
        if gpu is not None:
            raise InvalidRequest(f"--gpu {gpu}: {model} is a profile, which says its GPU", "gpu")
        return load_profile(model)
    return derive_profile(sizes_of(model, models), gpu or DEFAULT_GPU)


def _is_profile(model: str) -> bool:
    return model in PROFILES or model.endswith(".json")


def check_question(question: Question) -> None:
    """See that it can be asked.

    Raises:
        InvalidRequest: a value cannot be; names its option.
    """
    profile, demand = question.profile, question.demand
    targets, machines = question.targets, question.machines
    for name, value in (
        ("--ttft-ms", targets.ttft_ms),
        ("--tpot-ms", targets.tpot_ms),
        ("--dram-gb", machines.dram_gb),
        ("--disk-gb", machines.disk_gb),
        ("--link-gbit", machines.link_gbit),
        ("--seconds", question.seconds),
    ):
        if not 0 < value < math.inf:
            raise InvalidRequest(f"{name} {value:g}: not a number above 0", name)
    if demand.tokens_least > profile.max_model_len:
        raise InvalidRequest(
            f"--context {demand.context}: with a message and an answer of "
            f"{demand.reply} tokens it is more than the {profile.max_model_len:,} that "
            f"{profile.name} takes",
            "context",
        )


def run_plan(question: Question, say: Callable[[str], None]) -> dict[str, Any]:
    """Search, on as many cores as there are, and say what came of it.

    Raises:
        InvalidRequest: no number of GPUs that is allowed can be enough.
        SymphonyError: a simulation was ended from outside.
    """
    processes = min(os.cpu_count() or 1, AT_ONCE)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            plan = make_plan(question, lambda trials: list(pool.map(simulate, trials)), say)
        except BrokenProcessPool:
            why = "a simulation was ended from outside: is there enough memory?"
            raise SymphonyError(why) from None
    return summarize(plan)


def gpus_of_this_machine() -> int:
    """As `up` counts them; none where their driver does not answer."""
    try:
        return len(visible_gpus(os.environ))
    except GpusUnknown:
        return 0


def up_lines(summary: dict[str, Any], model: str) -> list[str]:
    """What to type to have what was simulated: of a model the first host, of a profile all of it,
    emulated on this machine, if that is not too much for one.
    """
    workers = min(summary["gpus"], summary["machines"]["gpus"])
    settings = summary["settings"]
    if not _is_profile(model):
        exports = [f"export {name}={value}" for name, value in settings.items()]
        return [*exports, hint(f"up --model {model} --workers {workers}")]
    hosts = summary["hosts"] if _is_emulated_whole(summary) else 1
    where = f"--hosts {hosts} " if hosts > 1 else ""
    # Emulated pages are small: sizes in bytes are for real ones.
    exports = [f"export {name}={settings[name]}" for name in settings if "BYTES" not in name]
    return [*exports, hint(f"up --emulate {model} {where}--workers {workers}")]


def _is_emulated_whole(summary: dict[str, Any]) -> bool:
    return bool(summary["hosts"] * summary["machines"]["gpus"] <= EMULATED_MAX)


def render(summary: dict[str, Any], model: str, gpus_here: int) -> RenderableType:
    """For people.

    Args:
        gpus_here: that the reader's machine has.
    """
    return Group(
        _headline(summary),
        "",
        _times(summary),
        *_remarks(summary),
        "",
        _history(summary),
        "",
        _memory(summary),
        "",
        *_how(summary, model, gpus_here),
        "",
        _simulated(summary),
    )


def _headline(summary: dict[str, Any]) -> str:
    gpus, hosts = summary["gpus"], summary["hosts"]
    who = (
        f"{_count(summary['users'], 'person')} with {summary['context_tokens']:,} tokens of history"
    )
    where = f"on {_count(hosts, 'host')}"
    if summary["is_enough"]:
        return f"[bold green]{_count(gpus, 'GPU')}[/bold green] {where}, for {who}"
    return f"[bold yellow]{_count(gpus, 'GPU')} {where} are not enough[/bold yellow] for {who}"


def _times(summary: dict[str, Any]) -> Table:
    percentile = summary["targets"]["percentile"]
    table = Table(box=None, pad_edge=False)
    for column in ("", "first token, ms", "", "between tokens, ms", "", "targets"):
        table.add_column(column, justify="left" if column in ("", "targets") else "right")
    table.columns[2].justify = table.columns[4].justify = "right"
    table.add_row("", "half within", percentile, "half within", percentile, "", style="dim")
    rows = [(_count(summary["gpus"], "GPU"), summary["seen"])]
    if (fewer := summary["fewer"]) is not None:
        rows.append((_count(fewer["gpus"], "GPU"), fewer))
    if (without := summary["without_hints"]) is not None:
        rows.append((f"{_count(summary['gpus'], 'GPU')}, no hints", without["seen"]))
    for name, seen in rows:
        ttft, tpot = seen["ttft_ms"], seen["tpot_ms"]
        verdict = "[yellow]missed[/yellow]" if seen["missed"] else "[green]met[/green]"
        table.add_row(
            name,
            f"{ttft['p50']:,.0f}",
            f"{ttft[percentile]:,.0f}",
            f"{tpot['p50']:,.1f}",
            f"{tpot[percentile]:,.1f}",
            verdict,
        )
    return table


def _remarks(summary: dict[str, Any]) -> list[str]:
    remarks = []
    if not summary["is_enough"]:
        remarks += [f"Not enough: {each}." for each in summary["seen"]["missed"]]
    if (fewer := summary["fewer"]) is not None:
        why = "; ".join(fewer["missed"])
        remarks.append(f"With {_count(fewer['gpus'], 'GPU')} {why}.")
    elif summary["is_enough"] and summary["gpus"] > 1:
        remarks.append("Fewer were not tried: the formula says that they cannot do the work.")
    if (without := summary["without_hints"]) is not None:
        remarks.append(_hints(summary["gpus"], without))
    if (turns := summary["seen"]["turns"]) < TURNS_FEW:
        remarks.append(
            f"Only {_count(turns, 'turn')} counted: percentiles say little; use a longer --seconds."
        )
    return remarks


def _hints(gpus: int, without: dict[str, Any]) -> str:
    needed = without["gpus"]
    if needed is None:
        return "Without hints no number of GPUs that was tried is enough."
    if needed == gpus:
        return "Without hints as many GPUs are enough; what they are worth is in the times above."
    return f"Without hints it takes {_count(needed, 'GPU')}."


def _history(summary: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("when its turn came, history was")
    columns = [(_count(summary["gpus"], "GPU"), summary["seen"])]
    if (fewer := summary["fewer"]) is not None:
        columns.append((_count(fewer["gpus"], "GPU"), fewer))
    if (without := summary["without_hints"]) is not None:
        columns.append((f"{_count(summary['gpus'], 'GPU')}, no hints", without["seen"]))
    for name, _ in columns:
        table.add_column(name, justify="right")
    for key, text in SOURCES.items():
        shares = (seen["history"].get(key, 0.0) for _, seen in columns)
        table.add_row(text, *(f"{100 * share:.1f} %" for share in shares))
    return table


def _memory(summary: dict[str, Any]) -> Table:
    sessions, hosts = summary["sessions"], summary["hosts"]
    table = Table(box=None, pad_edge=False)
    table.add_column("memory")
    table.add_column("GB", justify="right")
    for text, num_bytes in (
        ("everybody's history together", sessions["bytes"]),
        (f"room for it on {_count(summary['gpus'], 'GPU')}", sessions["gpu_bytes"]),
        (f"in the memory of {_count(hosts, 'host')}", sessions["host_memory_bytes"]),
        ("on their disks", sessions["disk_bytes"]),
        ("new on each disk in a day, if they chat all day", sessions["new_bytes_per_host_and_day"]),
    ):
        table.add_row(text, f"{num_bytes / 1e9:,.0f}")
    return table


def _how(summary: dict[str, Any], model: str, gpus_here: int) -> list[str]:
    lines = [f"  {escape(line)}" for line in up_lines(summary, model)]
    if _is_profile(model):
        return _emulated(summary, lines)
    machines, hosts = summary["machines"], summary["hosts"]
    workers = min(summary["gpus"], machines["gpus"])
    where = f"on a host with {_count(workers, 'GPU')}" if gpus_here < workers else "here"
    if hosts > 1:
        where = f"on the first of {hosts} hosts, each with {_count(workers, 'GPU')}"
    has = f"; this machine has {_count(gpus_here, 'GPU') if gpus_here else 'none'}"
    lines.insert(0, f"To run it {where}{has if gpus_here < workers else ''}:")
    if hosts > 1:
        last = summary["gpus"] - (hosts - 1) * machines["gpus"]
        rest = "" if last == machines["gpus"] else f", {last} on the last"
        lines.append(
            f"and on each of the others, with the same settings, a kvstore and {workers} workers"
            f"{rest}: docs/operations.md, To add machines"
        )
        lines.append(f"On Kubernetes {hosts} hosts of {workers} workers: docs/production.md, Size")
    else:
        lines.append("In compose (one GPU) and on Kubernetes: docs/production.md, Size")
    return lines


def _emulated(summary: dict[str, Any], lines: list[str]) -> list[str]:
    hosts = summary["hosts"]
    what = "it" if hosts == 1 or _is_emulated_whole(summary) else f"one of its {hosts} hosts"
    return [
        f"To try {what} on this machine, without GPUs, at their pace and without a model:",
        *lines,
        "With --model OWNER/NAME and --gpu in place of the profile it says how to run a model.",
    ]


def _simulated(summary: dict[str, Any]) -> str:
    part = summary["seen"]["simulated"]
    whole = part["users"] == summary["users"]
    who = "all of them" if whole else f"{part['users']:,} of them on {_count(part['gpus'], 'GPU')}"
    return (
        f"[dim]Simulated: {who}, {part['seconds']:.0f} s in virtual time, "
        f"{_count(summary['seen']['turns'], 'turn')} counted, seed {summary['seed']}, "
        f"{_count(len(summary['runs']), 'run')}. No GPU was measured: "
        f"{escape(summary['profile']['name'])} is reckoned from data sheets.[/dim]"
    )


def _count(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {'people' if what == 'person' else what + 's'}"
