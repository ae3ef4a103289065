"""`bench agents`: how well the turns that follow an agent's turn are announced.

The production core learns the call graph from the first half of a real trace and announces the
calls of the other half, in virtual time (SYMPHONY, sections 3.2, 3.3 and 4.4).
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.reporting import out
from loadtest.agents.calls import AgentTrace, Call, halves
from loadtest.agents.files import FOLDER, TRACES, read_trace
from loadtest.agents.policies import Learned, Oracle, Policy, Silent
from loadtest.agents.replay import Seconds, Waits, learn, recorded_s, replay
from services.tracker.core.agents import AgentFollower, AgentLimits
from shared.errors import InvalidRequest
from shared.profiles import LatencyProfile, load_profile

PLAIN_1 = AgentLimits(order_max=1, backs_off=False)
PLAIN_2 = AgentLimits(order_max=2, backs_off=False)


def run(argv: list[str]) -> dict[str, Any]:
    """Replay one trace, or all that are there, under every policy.

    Raises:
        InvalidRequest: an option cannot be, or the trace's file is not there.
    """
    options = _parser().parse_args(argv)
    if not options.load_gb_s > 0:
        raise InvalidRequest("--load-gb-s: above 0")
    if not options.folder.is_dir():
        return {"skipped": f"no traces at {options.folder}"}
    profile = load_profile(options.profile)
    names = list(TRACES) if options.trace == "all" else [options.trace]
    found = {name: _measure(read_trace(name, options.folder), profile, options) for name in names}
    return found[options.trace] if options.trace != "all" else {"traces": found}


def policies(learned_from: AgentTrace, seconds: Seconds) -> dict[str, Callable[[], Policy]]:
    """By name, each to be made anew. `order1` and `order2` are tables that stay as an offline run
    left them, as the paper has them; `backoff` goes on learning; `live` was told nothing before.
    """
    limits = AgentLimits()

    def table(plain: AgentLimits) -> Policy:
        graph = learn(learned_from, plain, seconds)
        graph.is_frozen = True
        return Learned(AgentFollower(plain, {"": graph}), learned_from.calls)

    return {
        "none": Silent,
        "order1": lambda: table(PLAIN_1),
        "order2": lambda: table(PLAIN_2),
        "live": lambda: Learned(AgentFollower(limits)),
        "backoff": lambda: Learned(
            AgentFollower(limits, {"": learn(learned_from, limits, seconds)}), learned_from.calls
        ),
        "oracle": Oracle,
    }


def _measure(
    trace: AgentTrace, profile: LatencyProfile, options: argparse.Namespace
) -> dict[str, Any]:
    learned_from, rest = halves(trace)
    seconds = _by_profile(profile) if options.durations == "profile" else recorded_s
    waits = _waits(profile, options.load_gb_s)
    found = {}
    for name, make in policies(learned_from, seconds).items():
        policy = make()
        measured = replay(rest, policy, seconds=seconds, waits=waits)
        found[name] = measured.summary(policy, is_timed=trace.is_timed)
        out.print(f"{trace.name} {name}: {found[name]}")
    return {
        "trace": trace.name,
        "learned_calls": len(learned_from.calls),
        "measured_calls": len(rest.calls),
        "durations": options.durations if trace.is_timed else "none",
        "notes": list(trace.notes),
        "policies": found,
    }


def _by_profile(profile: LatencyProfile) -> Seconds:
    """How long calls take on a device that has them for itself, but for their history."""

    def seconds(call: Call) -> float:
        return call.output_tokens * profile.step_ms(0, 1, call.prompt_tokens) / 1e3

    return seconds


def _waits(profile: LatencyProfile, load_gb_s: float) -> Waits:
    """How long a call waits for its history: what is left of loading it since it was announced, or
    computing it, whichever is less. Prompts are taken to grow by appending.
    """

    def waits(call: Call, num_history: int, lead_s: float | None) -> float:
        if not num_history:
            return 0.0
        compute_s = profile.step_ms(num_history, 0) / 1e3
        load_s = num_history * profile.kv_bytes_per_token / (load_gb_s * 1e9)
        return min(compute_s, max(load_s - (lead_s or 0.0), 0.0))

    return waits


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench agents", description=__doc__)
    parser.add_argument(
        "--trace", choices=[*TRACES, "all"], default="metagpt", help="which one (default metagpt)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help="where the traces are (default: beside the repository)",
    )
    parser.add_argument(
        "--durations",
        choices=["recorded", "profile"],
        default="recorded",
        help="of calls: as they were recorded (default), or what their tokens take by --profile",
    )
    parser.add_argument(
        "--profile", default="a100-llama3-8b", help="what computes history (default a100-llama3-8b)"
    )
    parser.add_argument(
        "--load-gb-s", type=float, default=1.0, help="how fast history is loaded (default 1)"
    )
    return parser
