"""``symphony bench admission``: prompts admitted at once, and as late as their targets allow.

One worker in virtual time: the production engine core decides, a latency profile says how long each
step takes. Both policies get the same turns: Poisson arrivals with lognormal lengths, or a trace
whose gaps are stretched to each load. Nothing here knows a policy's rule.

Counted are turns that arrive after the first and before the last tenth of the time. TTFT runs from
a turn's arrival at the worker to its first token; TPOT is, for each turn, the mean time between its
tokens; the reply is over with the last one.
"""

import argparse
import csv
import gzip
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from services.worker.core.effects import Emit
from services.worker.core.engine.engine import EngineCore
from services.worker.core.kv.pages import PagePool
from services.worker.core.limits import AdmissionName, EngineLimits
from services.worker.core.step import Sampled, StepPlan, StepResult
from services.worker.core.turns.request import TurnRequest
from services.worker.core.turns.turn import Turn
from services.worker.core.turns.turn_cache import TurnCache
from shared.blocks import BLOCK_TOKENS, root_key
from shared.errors import InvalidRequest
from shared.ids import DEFAULT_TENANT, FrontendId, TurnId
from shared.messages import SamplingParams
from shared.profiles import LatencyProfile, load_profile

POLICIES: tuple[AdmissionName, ...] = get_args(AdmissionName)
ROOT = root_key("bench", DEFAULT_TENANT)
PREFILL_TOKENS_MAX = 2048
TTFT_SHARE = 0.99  # of turns that must have their first token in time
TPOT_SHARE = 0.9
LOAD_STEP = 0.1
PLAIN_TOKEN = 1

Arrivals = list[tuple[int, int, int]]  # ns, prompt tokens, output tokens
MakeArrivals = Callable[[float, int], Arrivals]  # of a load in turns/s, and a seed


@dataclass(slots=True)
class Seen:
    """One turn as its user sees it."""

    arrived_at_ns: int
    num_output: int
    first_at_ns: int = 0
    last_at_ns: int = 0

    @property
    def ttft_ms(self) -> float:
        return (self.first_at_ns - self.arrived_at_ns) / 1e6

    @property
    def tpot_ms(self) -> float:
        return (self.last_at_ns - self.first_at_ns) / 1e6 / (self.num_output - 1)


@dataclass(slots=True)
class Run:
    """What one policy made of some turns."""

    turns: list[Seen]
    num_steps: int = 0
    num_prefill_steps: int = 0


def run(argv: list[str]) -> dict[str, Any]:
    """Compare the policies: ``{"loads": {load: {policy: figures}}, "sustained_rps": {policy: x}}``.

    Raises:
        InvalidRequest: the trace cannot be read.
    """
    args = _parse(argv)
    profile = load_profile(args.profile)
    make = partial(_poisson, seconds=args.seconds)
    if args.trace is not None:
        make = partial(_stretch, _read_trace(args.trace), args.seconds)
    measure = partial(_measure, args, profile, make)
    loads: dict[str, dict[str, dict[str, float]]] = {}
    for load in (float(text) for text in args.loads.split(",")):
        loads[f"{load:g}"] = {policy: measure(policy, load) for policy in POLICIES}
        for policy, figures in loads[f"{load:g}"].items():
            _print(load, policy, figures)
    sustained = {policy: _sustained(partial(measure, policy), args) for policy in POLICIES}
    print(f"sustained turns/s: {sustained}", file=sys.stderr)
    return {
        "profile": profile.name,
        "slo_ttft_ms": args.slo_ttft_ms,
        "tpot_ms": args.tpot_ms,
        "loads": loads,
        "sustained_rps": sustained,
    }


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="symphony bench admission", description=__doc__)
    parser.add_argument("--profile", default="a100-llama3-8b")
    parser.add_argument("--loads", default="2,4,5,6", help="turns per second")
    parser.add_argument("--slo-ttft-ms", type=float, default=2000.0)
    parser.add_argument("--tpot-ms", type=float, default=30.0, help="target of the load search")
    parser.add_argument("--seconds", type=float, default=150.0, help="of arrivals, virtual")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--turns-running-max", type=int, default=64)
    parser.add_argument(
        "--trace", type=Path, help="CSV (.gz) with TIMESTAMP, ContextTokens, GeneratedTokens"
    )
    parser.add_argument(
        "--overlap", action="store_true", help="prompts are computed while weights are read"
    )
    parser.add_argument("--quick", action="store_true", help="fewer loads, seeds and seconds")
    args = parser.parse_args(argv)
    if args.quick:
        args.loads, args.seconds, args.seeds = "2,5", min(args.seconds, 60.0), 1
    return args


def _measure(
    args: argparse.Namespace,
    profile: LatencyProfile,
    make: MakeArrivals,
    policy: AdmissionName,
    load: float,
) -> dict[str, float]:
    limits = EngineLimits(
        max_model_len=profile.max_model_len,
        prefill_tokens_max=PREFILL_TOKENS_MAX,
        turns_running_max=args.turns_running_max,
        prefill_admission=policy,
        slo_ttft_ns=int(args.slo_ttft_ms * 1e6),
    )
    runs = [
        simulate(profile, limits, make(load, seed), is_overlapped=args.overlap)
        for seed in range(args.seeds)
    ]
    end_ns = args.seconds * 1e9
    turns = [t for r in runs for t in r.turns if 0.1 < t.arrived_at_ns / end_ns < 0.9]
    if not turns:
        raise InvalidRequest(f"no turn to count at {load:g} turns/s: ask for more --seconds")
    return {
        **_figures(turns, args.slo_ttft_ms, args.tpot_ms),
        "num_steps": sum(r.num_steps for r in runs),
        "num_prefill_steps": sum(r.num_prefill_steps for r in runs),
    }


def _figures(turns: list[Seen], slo_ttft_ms: float, tpot_ms: float) -> dict[str, float]:
    ttfts = sorted(turn.ttft_ms for turn in turns)
    tpots = sorted(turn.tpot_ms for turn in turns)
    replies = [(turn.last_at_ns - turn.arrived_at_ns) / 1e9 for turn in turns]
    figures = {
        "ttft_attainment": sum(ttft <= slo_ttft_ms for ttft in ttfts) / len(ttfts),
        "tpot_attainment": sum(tpot <= tpot_ms for tpot in tpots) / len(tpots),
        "ttft_p50_ms": _percentile(ttfts, 50),
        "ttft_p99_ms": _percentile(ttfts, 99),
        "tpot_mean_ms": statistics.fmean(tpots),
        "tpot_p50_ms": _percentile(tpots, 50),
        "tpot_p99_ms": _percentile(tpots, 99),
        "reply_mean_s": statistics.fmean(replies),
    }
    return {name: round(value, 4) for name, value in figures.items()}


def _percentile(ordered: list[float], percent: float) -> float:
    return ordered[min(int(percent / 100 * len(ordered)), len(ordered) - 1)]


def _sustained(measure: Callable[[float], dict[str, float]], args: argparse.Namespace) -> float:
    """The highest load at which both targets are kept, by binary search."""

    def is_kept(num_steps: int) -> bool:
        figures = measure(num_steps * LOAD_STEP)
        is_in_time = figures["ttft_attainment"] >= TTFT_SHARE
        return is_in_time and figures["tpot_attainment"] >= TPOT_SHARE

    low, high = 0, 4
    while is_kept(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return round(low * LOAD_STEP, 1)


def simulate(
    profile: LatencyProfile,
    limits: EngineLimits,
    arrivals: Arrivals,
    *,
    is_overlapped: bool = False,
) -> Run:
    """Run these turns to their ends, step by step, as the worker's loop does.

    Args:
        is_overlapped: of reading the weights and computing prompts, a step takes the longer, not
            the sum.
    """
    pool = PagePool(profile.num_kv_tokens // BLOCK_TOKENS, 1)  # pages of one layer stand for all
    core = EngineCore(limits, pool, 1, frozenset(), BLOCK_TOKENS)
    seen: dict[TurnId, Seen] = {}
    result = Run([])
    coming = iter(arrivals)
    upcoming = next(coming, None)
    now_ns = 0
    while upcoming is not None or core.turns:
        while upcoming is not None and upcoming[0] <= now_ns:
            turn = _turn(len(seen), upcoming)
            seen[turn.request.turn_id] = Seen(
                turn.request.arrived_at_ns, turn.request.sampling.max_tokens
            )
            core.on_turn(turn, now_ns)
            upcoming = next(coming, None)
        plan, _ = core.plan_step(now_ns)
        if plan is None:
            assert upcoming is not None, "turns wait and nothing runs"
            now_ns = upcoming[0]
            continue
        duration_ns = _duration_ns(profile, plan, result, is_overlapped)
        now_ns += duration_ns
        sampled = [Sampled(PLAIN_TOKEN) if sampling else None for sampling in plan.sampling]
        for effect in core.on_step(StepResult(sampled, duration_ns=duration_ns), now_ns):
            if isinstance(effect, Emit):
                turn_seen = seen[effect.delta.turn_id]
                turn_seen.first_at_ns = turn_seen.first_at_ns or now_ns
                turn_seen.last_at_ns = now_ns
    result.turns = list(seen.values())
    return result


def _turn(number: int, arrival: tuple[int, int, int]) -> Turn:
    at_ns, num_prompt, num_output = arrival
    request = TurnRequest(
        turn_id=TurnId(f"t{number}"),
        attempt=1,
        frontend_id=FrontendId("bench"),
        tenant=DEFAULT_TENANT,
        session_id=None,
        sampling=SamplingParams(max_tokens=num_output, ignore_eos=True),
        arrived_at_ns=at_ns,
    )
    return Turn(
        request,
        TurnCache(
            owner=request.owner, tokens=[number] * num_prompt, block_tokens=BLOCK_TOKENS, root=ROOT
        ),
    )


def _duration_ns(profile: LatencyProfile, plan: StepPlan, result: Run, is_overlapped: bool) -> int:
    num_prefill = plan.num_prefill_tokens
    result.num_steps += 1
    result.num_prefill_steps += num_prefill > 0
    num_context = int(plan.context_lens.sum())
    step_ms = profile.step_ms(num_prefill, plan.num_decodes, num_context)
    if is_overlapped:
        step_ms -= min(profile.base_ms, profile.prefill_ms_per_token * num_prefill)
    return int(step_ms * 1e6)


def _poisson(load: float, seed: int, *, seconds: float) -> Arrivals:
    """Prompts of 600 and outputs of 130 tokens in the median, the spread of chat traces."""
    rng = random.Random(seed)
    arrivals: Arrivals = []
    at_s = rng.expovariate(load)
    while at_s < seconds:
        num_prompt = min(max(int(rng.lognormvariate(math.log(600), 0.9)), 4), 4096)
        num_output = min(max(int(rng.lognormvariate(math.log(130), 0.9)), 2), 1024)
        arrivals.append((int(at_s * 1e9), num_prompt, num_output))
        at_s += rng.expovariate(load)
    return arrivals


def _read_trace(path: Path) -> Arrivals:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            arrivals = list(_rows(csv.DictReader(file)))
    except (OSError, KeyError, ValueError) as error:
        raise InvalidRequest(f"cannot read the trace {path}: {error}") from None
    if len(arrivals) < 2:
        raise InvalidRequest(f"the trace {path} holds fewer than two turns")
    return arrivals


def _rows(reader: "csv.DictReader[str]") -> Iterator[tuple[int, int, int]]:
    for row in reader:
        at = datetime.fromisoformat(row["TIMESTAMP"][:26])
        sizes = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        yield int(at.timestamp() * 1e9), max(sizes[0], 2), max(sizes[1], 2)


def _stretch(trace: Arrivals, seconds: float, load: float, seed: int) -> Arrivals:
    """A piece of the trace that gives this load on average, its gaps scaled to `seconds`."""
    num_turns = min(max(int(load * seconds), 1), len(trace) - 1)
    first = random.Random(seed).randrange(len(trace) - num_turns)
    piece = trace[first : first + num_turns + 1]
    scale = seconds * 1e9 / (piece[-1][0] - piece[0][0])
    at_ns = 0.0
    arrivals: Arrivals = []
    for before, after in pairwise(piece):
        at_ns += (after[0] - before[0]) * scale
        arrivals.append((int(at_ns), after[1], after[2]))
    return arrivals


def _print(load: float, policy: str, figures: dict[str, float]) -> None:
    print(
        f"{load:4g}/s {policy:8s}"
        f" TTFT in time {100 * figures['ttft_attainment']:6.2f}%,"
        f" p50 {figures['ttft_p50_ms']:5.0f}, p99 {figures['ttft_p99_ms']:5.0f} ms;"
        f" TPOT mean {figures['tpot_mean_ms']:5.2f}, p50 {figures['tpot_p50_ms']:5.2f},"
        f" p99 {figures['tpot_p99_ms']:6.2f} ms; reply {figures['reply_mean_s']:5.2f} s;"
        f" {figures['num_prefill_steps']:.0f} of {figures['num_steps']:.0f} steps with prompts",
        file=sys.stderr,
        flush=True,
    )
