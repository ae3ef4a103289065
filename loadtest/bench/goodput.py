"""``symphony bench goodput``: the highest load that a simulated cluster serves in time.

Virtual time, the production batching core, emulated GPUs (docs/simulator.md). Goodput is the
highest offered rate at which every model loses at most 1% of its jobs, late or dropped.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from loadtest.policies import POLICY_HELP, make_batcher
from loadtest.simulator.arrivals import popularity
from loadtest.simulator.bounds import staggered_rps
from loadtest.simulator.faults import GpuFault
from loadtest.simulator.models import MS_NS, SimModel, Truth, copies, linear_model, zoo_models
from loadtest.simulator.network import Delay, Network, jittered
from loadtest.simulator.results import Result
from loadtest.simulator.scenario import Scenario
from loadtest.simulator.search import find_goodput
from loadtest.simulator.trace import write_trace
from services.scheduler.core.batching.job import Delays
from services.scheduler.policies import DEFAULT_POLICY
from shared.errors import InvalidRequest
from shared.zoo import Device, Subset

NOTICED_AFTER_NS = 50 * MS_NS  # a GPU's silence


def run(argv: list[str]) -> dict[str, Any]:
    """Search the goodput, or run at ``--rps``.

    Raises:
        InvalidRequest: flags that do not go together, or a value out of range; names it.
    """
    args = _parser().parse_args(argv)
    scenario = make_scenario(args)
    begin = time.perf_counter()
    if args.rps is not None:
        result, record = scenario.record(scenario.arrivals(args.rps))
        goodput, num_jobs = result.good_rps, result.num_jobs
    else:
        found = find_goodput(scenario, args.tolerance)
        if found.result is None:
            raise InvalidRequest(
                f"no rate is served within the target: --slo-ms is too short for {args.policy} on "
                f"--gpus {args.gpus}, or --seconds {args.seconds:g} hold too few jobs"
            )
        goodput, result, num_jobs = found.rps, found.result, found.num_jobs
        record = None
    elapsed_s = time.perf_counter() - begin
    if args.trace is not None:
        if record is None:
            record = scenario.record(scenario.arrivals(goodput))[1]
        write_trace(args.trace, record)
    summary = _summary(scenario, args.rps, goodput, result)
    summary["sim_jobs_per_s"] = round(num_jobs / elapsed_s)
    _print(summary, result)
    return summary


def _summary(
    scenario: Scenario, rps: float | None, goodput: float, result: Result
) -> dict[str, Any]:
    bound = staggered_rps(scenario.models, scenario.shares, scenario.num_gpus)
    return {
        "goodput_rps": round(goodput, 1),
        "bad_rate": round(result.bad_rate, 5),
        "batch_p50": result.batch_p50,
        "gpu_busy": round(result.gpu_busy, 4),
        "staggered_bound_rps": round(bound, 1),
        "policy": scenario.policy,
        "offered_rps": round(goodput if rps is None else rps, 1),
        "good_rps": round(result.good_rps, 1),
        "worst_bad_rate": round(result.worst_bad_rate, 5),
        "dropped": result.dropped(),
        "num_late": sum(model.num_late for model in result.models),
        "num_gpus_used": sum(busy > 0.01 for busy in result.busy),
        "models": len(scenario.models),
        "gpus": scenario.num_gpus,
        "seconds": scenario.seconds,
        "seed": scenario.seed,
    }


def make_scenario(args: argparse.Namespace) -> Scenario:
    """What the flags ask for.

    Raises:
        InvalidRequest: they do not go together.
        ConfigError: no policy of this name.
    """
    make_batcher(args.policy)  # so that a wrong name is refused before anything runs
    models = _models(args)
    ctrl_ns = round(args.delay_ctrl_ms * MS_NS)
    data_ns = round(args.delay_data_ms * MS_NS)
    dispatch = jittered(ctrl_ns, args.jitter)
    truth = Truth(args.lie, args.noise)
    if args.seconds <= args.cold_seconds:
        raise InvalidRequest(
            f"--seconds {args.seconds:g}: nothing is left after --cold-seconds "
            f"{args.cold_seconds:g}"
        )
    return Scenario(
        models=tuple(models),
        num_gpus=args.gpus,
        weights=tuple(popularity(args.popularity, len(models))),
        policy=args.policy,
        gamma=args.gamma,
        seconds=args.seconds,
        cold_s=args.cold_seconds,
        seed=args.seed,
        delays=Delays(ctrl_ns, data_ns),
        network=Network(dispatch, data_ns, done=dispatch if args.late_news else Delay()),
        truth=truth,
        learns=not args.no_learning and not truth.is_exact,
        faults=_faults(args),
        slo_spread=args.slo_spread,
        recorded=args.arrivals,
    )


def _models(args: argparse.Namespace) -> list[SimModel]:
    times = {"--alpha-ms": args.alpha_ms, "--beta-ms": args.beta_ms, "--slo-ms": args.slo_ms}
    if args.zoo is not None:
        given = [flag for flag, value in times.items() if value is not None]
        if given:
            raise InvalidRequest(f"--zoo has its own models: leave {', '.join(given)} out")
        return copies_of_all(zoo_models(args.zoo, args.subset), args.models)
    missing = [flag for flag, value in times.items() if value is None]
    if missing:
        raise InvalidRequest(f"say which models: {', '.join(missing)}, or --zoo")
    if args.subset != "mixed":
        raise InvalidRequest(f"--subset {args.subset} is a part of a --zoo")
    model = linear_model("model", args.alpha_ms, args.beta_ms, args.slo_ms)
    if model.batch_ns()[1] > model.slo_ns:
        raise InvalidRequest(
            f"--slo-ms {args.slo_ms:g}: a single job takes {model.batch_ns()[1] / MS_NS:g} ms"
        )
    return copies(model, args.models)


def copies_of_all(models: list[SimModel], num_copies: int) -> list[SimModel]:
    """Every model so many times."""
    return [copy for model in models for copy in copies(model, num_copies)]


def _faults(args: argparse.Namespace) -> tuple[GpuFault, ...]:
    if args.kill_gpu is None:
        return ()
    if args.kill_gpu >= args.seconds:
        raise InvalidRequest(
            f"--kill-gpu {args.kill_gpu:g}: after the end, --seconds {args.seconds:g}"
        )
    return (GpuFault(0, round(args.kill_gpu * 1e9), NOTICED_AFTER_NS),)


def _number(name: str, least: float, *, is_open: bool = True) -> Callable[[str], float]:
    """A converter that says what is wrong in words."""

    def convert(text: str) -> float:
        value = float(text)
        if not (value > least if is_open else value >= least) or value == float("inf"):
            raise argparse.ArgumentTypeError(
                f"{text} is not {'above' if is_open else 'at least'} {least:g}"
            )
        return value

    convert.__name__ = name  # argparse says "invalid number value" with it
    return convert


def count(text: str) -> int:
    """A whole number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


def _parser() -> argparse.ArgumentParser:
    above, at_least = _number("number", 0), _number("number", 0, is_open=False)
    parser = argparse.ArgumentParser(prog="symphony bench goodput", description=__doc__)
    add = parser.add_argument
    add("--alpha-ms", type=at_least, help="time of each further job of a batch")
    add("--beta-ms", type=at_least, help="time of any batch")
    add("--slo-ms", type=above, help="target, from arrival to result")
    add(
        "--slo-spread",
        type=_share,
        default=0.0,
        help="own targets within this share of the model's",
    )
    add("--gpus", type=count, required=True)
    add("--models", type=count, default=1, help="copies of the model (of each, with --zoo)")
    add("--zoo", choices=get_args(Device), help="the paper's models on this device")
    add("--subset", choices=get_args(Subset), default="mixed", help="by batching effect")
    add("--policy", default=DEFAULT_POLICY, help=POLICY_HELP)
    add("--popularity", default="equal", help="equal or zipf:S")
    add("--gamma", type=above, default=1.0, help="shape of the gaps; 1 is Poisson, less bursts")
    add("--seconds", type=above, default=20.0, help="of arrivals, virtual")
    add("--cold-seconds", type=at_least, default=1.0, help="at the start, not counted")
    add("--seed", type=int, default=1)
    add("--rps", type=above, help="no search: one run at this load")
    add("--tolerance", type=above, default=0.004, help="of the search, a share of the rate")
    add("--arrivals", type=Path, help="CSV of recorded arrivals to stretch to the load")
    add("--delay-ctrl-ms", type=at_least, default=0.0, help="network: each dispatch")
    add("--delay-data-ms", type=at_least, default=0.0, help="network: each job's input")
    add("--jitter", default="none", help="none, uniform or lognormal:SIGMA, within --delay-ctrl-ms")
    add("--late-news", action="store_true", help="the ends of batches are reported as late, too")
    add("--lie", type=above, default=1.0, help="batches take so many times the profile")
    add("--noise", type=at_least, default=0.0, help="sigma of a lognormal factor on each batch")
    add("--no-learning", action="store_true", help="do not correct the profiles by what is seen")
    add("--kill-gpu", type=at_least, metavar="T", help="GPU 0 vanishes after so many seconds")
    add("--trace", type=Path, metavar="FILE", help="write what happened, for ui.perfetto.dev")
    return parser


def _print(summary: dict[str, Any], result: Result) -> None:
    print(
        f"{summary['policy']}: {summary['good_rps']:g} good of {summary['offered_rps']:g} r/s"
        f" offered ({100 * summary['bad_rate']:.2f}% bad), batches of {result.batch_p50:g},"
        f" GPUs {100 * result.gpu_busy:.1f}% busy; staggered bound"
        f" {summary['staggered_bound_rps']:g} r/s; {summary['sim_jobs_per_s']:,} simulated jobs/s",
        file=sys.stderr,
        flush=True,
    )
