"""``symphony bench cluster``: a cluster in virtual time around the production cores.

Scheduler, tracker, frontend, kvstores and workers decide as they do in production; GPUs, PCIe,
disks and links only take their time (``loadtest/cluster/plant.py`` says which). At the end every
page is accounted for. ``--real`` plays the same arrivals to real processes with emulated workers,
and compares.
"""

import argparse
import math
import sys
from collections import Counter
from dataclasses import asdict
from typing import Any, get_args

import uvloop

from loadtest.cluster.measured import PACKINGS
from loadtest.cluster.options import ClusterOptions, Without
from loadtest.cluster.real import play_real
from loadtest.cluster.result import ClusterResult
from loadtest.cluster.run import run_cluster
from loadtest.deployment import deployed
from loadtest.policies.placement import SYSTEMS
from loadtest.sim.timeline import SECOND
from loadtest.workloads.registry import WORKLOADS, why_absent
from loadtest.workloads.script import Script
from services.scheduler.core import DEFAULT_POLICY, POLICIES
from shared.errors import InvalidRequest, NotFound
from shared.eviction import EvictionName

SPURIOUS_MAX = 100
NOT_SEEN = (
    "load_max_over_median", "load_max_minus_min", "recomputed_tokens", "cached_tokens", "prefetch",
    "loaded_tokens", "took_s",
)  # fmt: skip
COMPARED = ("ttft_ms", "tpot_ms", "normalized_ms")


def run(argv: list[str]) -> dict[str, Any]:
    """Simulate, and perhaps run.

    Raises:
        InvalidRequest: a value that cannot be; names it.
        NotFound: the workload's traces are not here.
    """
    args = _parser().parse_args(argv)
    options = _options(args)
    if why := why_absent(options.trace):
        raise NotFound(f"--trace {options.trace}: {why}")
    scripts = WORKLOADS[options.trace](options.users, options.lasts_ns, options.seed)
    _say(f"{len(scripts)} scripts")
    simulated = run_cluster(options, scripts)
    _say(f"simulated in {simulated.took_s:.1f} s")
    figures = _figures(simulated)
    if args.real:
        figures |= _compare(options, scripts, simulated)
    return figures


def _compare(
    options: ClusterOptions, scripts: list[Script], simulated: ClusterResult
) -> dict[str, Any]:
    """The same on real processes, and by how much they differ: simulated over real."""
    num_hosts = -(-options.gpus // options.gpus_per_host)
    per_host = str(options.gpus // num_hosts)
    shape = ("--emulate", options.profile, "--workers", per_host, "--hosts", str(num_hosts))
    settings = {"SYMPHONY_SCHEDULER_POLICY": options.policy}
    with deployed(*shape, settings=settings) as deployment:
        stats = uvloop.run(play_real(options, scripts, deployment.port))
    real = stats.result(options.duration_ns, Counter(), options.duration_ns / SECOND)
    ratios = {
        name: round(getattr(simulated, name).mean / max(getattr(real, name).mean, 1e-9), 3)
        for name in COMPARED
    }
    ratios["requests_per_s"] = round(simulated.requests_per_s / max(real.requests_per_s, 1e-9), 3)
    seen = {name: each for name, each in _figures(real).items() if name not in NOT_SEEN}
    return {"real": seen, "simulated_over_real": ratios}


def _figures(result: ClusterResult) -> dict[str, Any]:
    """For machines, rounded; workflows by their mean."""
    figures: dict[str, Any] = _rounded(asdict(result))
    workflows = figures.pop("workflow_s")
    figures["workflow_mean_s"] = round(sum(workflows) / max(len(workflows), 1), 2)
    return figures


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return value


def _options(args: argparse.Namespace) -> ClusterOptions:
    for name in ("missed", "priority_share"):
        if not 0 <= getattr(args, name) <= 1:
            raise InvalidRequest(f"--{name.replace('_', '-')}: not between 0 and 1", name)
    if not 0 <= args.warm < math.inf:
        raise InvalidRequest("--warm: not a number of seconds", "warm")
    if not 0 <= args.spurious <= SPURIOUS_MAX:
        raise InvalidRequest(f"--spurious: not between 0 and {SPURIOUS_MAX}", "spurious")
    for name in ("gpus", "gpus_per_host", "users", "seconds", "dram_gb", "disk_gb", "link_gbit"):
        if not 0 < getattr(args, name) < math.inf:
            raise InvalidRequest(f"--{name.replace('_', '-')}: not a number above 0", name)
    if "balance" in args.without and args.policy != DEFAULT_POLICY:
        raise InvalidRequest(f"--without balance is of --policy {DEFAULT_POLICY} only", "without")
    if args.real:
        known = ClusterOptions()
        for name in ("dram_gb", "disk_gb", "link_gbit"):
            if getattr(args, name) != getattr(known, name):
                flag = name.replace("_", "-")
                raise InvalidRequest(f"--{flag} is not what the real processes have", name)
        is_own = args.eviction == known.eviction
        if args.without or args.packing or args.coarse or args.grouped or not is_own:
            raise InvalidRequest(
                "--eviction, --without, --packing, --coarse and --grouped: the simulation only has "
                "them",
                "real",
            )
        if args.policy not in POLICIES:
            raise InvalidRequest(
                f"--policy {args.policy}: the simulation only has it; --real takes --policy "
                f"{' or '.join(POLICIES)}",
                "real",
            )
        if args.gpus % min(args.gpus_per_host, args.gpus):
            raise InvalidRequest("--real: every host has as many GPUs", "gpus")
    return ClusterOptions(
        profile=args.profile,
        gpus=args.gpus,
        gpus_per_host=args.gpus_per_host,
        dram_gb=args.dram_gb,
        disk_gb=args.disk_gb,
        link_gbit=args.link_gbit,
        users=args.users,
        policy=args.policy,
        missed=args.missed,
        spurious=args.spurious,
        priority_share=args.priority_share,
        eviction=args.eviction,
        without=frozenset(args.without),
        packing=args.packing,
        trace=args.trace,
        seed=args.seed,
        duration_ns=round(args.seconds * SECOND),
        warm_ns=round(args.warm * SECOND),
        coarse=args.coarse,
        grouped=args.grouped,
        schedulers=args.schedulers,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench cluster", description=__doc__)
    known = ClusterOptions()
    add = parser.add_argument
    add("--profile", default=known.profile, help="model and GPU, or a file (a100-llama3.1-8b)")
    add("--gpus", type=int, default=known.gpus)
    add("--gpus-per-host", type=int, default=known.gpus_per_host)
    add("--dram-gb", type=float, default=known.dram_gb, help="of a host")
    add("--disk-gb", type=float, default=known.disk_gb, help="of a host")
    add("--link-gbit", type=float, default=known.link_gbit, help="of a host, into each direction")
    add("--users", type=int, default=known.users, help="who ask at the same time")
    add("--policy", choices=list(SYSTEMS), default=known.policy, help="of placement")
    add("--missed", type=float, default=0.0, help="share of hints that are never sent")
    add("--spurious", type=float, default=0.0, help="hints for nothing, per turn")
    add("--priority-share", type=float, default=0.0, help="of people who are urgent")
    add("--eviction", choices=get_args(EvictionName), default=known.eviction, help="order")
    add("--without", action="append", choices=get_args(Without), default=[], help="switched off")
    add("--packing", choices=list(PACKINGS), default="", help="of KV below GPUs (none)")
    add("--trace", choices=list(WORKLOADS), default=known.trace)
    add("--seed", type=int, default=known.seed)
    add("--seconds", type=float, default=known.duration_ns / SECOND, help="of the workload")
    add("--schedulers", type=int, default=1, help="among which turns are divided")
    add("--warm", type=float, default=0.0, help="seconds before that, which do not count")
    add("--coarse", action="store_true", help="for large clusters: 16 tokens are one")
    add("--grouped", action="store_true", help="layers move in eight groups")
    add("--real", action="store_true", help="also real processes, for as long in real time")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
