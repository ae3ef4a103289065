"""``symphony bench emulated``: the simulator's scenario with real processes in real time.

A NATS server of its own, the scheduler, an emulated worker for each GPU, and a driver that plays
the frontend on the wire. The simulator is then given the same arrivals, the same policy, and as
network delays what the scheduler is told to reckon with. `difference` says how far the two are
apart in good jobs per second. All processes share this machine: `cpu` shows what each of them took
of a core, so that one sees whether the machine, and not the scheduler's decisions, set the limit.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import uvloop

from loadtest.bench.goodput import copies_of_all, count
from loadtest.jobs.cluster import Cluster, open_cluster
from loadtest.jobs.order import ANSWERED, DROPPED, Model, Order, Outcome
from loadtest.policies import POLICY_HELP, make_batcher
from loadtest.simulator import Delay, Network, Result, Scenario, SimModel, find_goodput
from loadtest.simulator.arrivals import Arrivals, popularity
from loadtest.simulator.models import copies, linear_model, zoo_models
from loadtest.simulator.scenario import BAD_RATE_MAX
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.jobs import JobLimits
from services.scheduler.policies import DEFAULT_POLICY
from services.worker.oneshot.emulated import BATCH_MAX
from shared.errors import InvalidRequest
from shared.messages import BatchDone
from shared.zoo import Device, Subset

GATHER_NS = 1_000_000  # what a job waits for others to be submitted with
COLD_S = 1.0
SHARE = 0.9  # of the simulated goodput: the load of a run for which none is given
SEARCH_FROM = 0.5  # of the simulated goodput; to:
SEARCH_TO = 1.05
SEARCH_STEPS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """One load on the real processes, counted over jobs that arrive after the cold start.

    Attributes:
        num_late: answered after their deadline.
        num_dropped: by the scheduler.
        num_unanswered: neither, until a grace after their deadline.
        worst_bad_rate: of the model that fares worst.
        cores: what each process took of a core; workers together.
        sent_late_ms: 99th percentile of how late the driver came to send a job.
    """

    offered_rps: float
    good_rps: float
    num_late: int
    num_dropped: int
    num_unanswered: int
    bad_rate: float
    worst_bad_rate: float
    batch_p50: float
    gpu_busy: float
    latency_p50_ms: float
    latency_p99_ms: float
    cores: dict[str, float]
    sent_late_ms: float


def run(argv: list[str]) -> dict[str, Any]:
    """Run one load, or search the highest that is served.

    Raises:
        InvalidRequest: flags that do not go together, or a value out of range; names it.
    """
    args = _parser().parse_args(argv)
    models = _models(args)
    limits = JobLimits()
    scenario = make_scenario(args, models, limits)
    sim_goodput = 0.0
    if args.rps is None or args.search:
        sim_goodput = find_goodput(scenario).rps
        _say(f"the simulator serves {sim_goodput:.1f} r/s")
    return uvloop.run(_run(args, models, scenario, sim_goodput))


def make_scenario(args: argparse.Namespace, models: list[SimModel], limits: JobLimits) -> Scenario:
    """What the real processes do, simulated.

    A target loses on its way what the wire takes of it: a job waits to be submitted with others,
    and its result has a way back.
    """
    make_batcher(args.policy)  # so that a wrong name is told before anything runs
    lost_ms = (GATHER_NS + limits.return_ns) / 1e6
    if args.seconds <= COLD_S:
        raise InvalidRequest(f"--seconds {args.seconds:g}: the first {COLD_S:g} is not counted")
    return Scenario(
        models=tuple(
            SimModel(m.name, m.alpha_ms, m.beta_ms, m.slo_ms - lost_ms, m.size_max) for m in models
        ),
        num_gpus=args.gpus,
        weights=tuple(popularity(args.popularity, len(models))),
        policy=args.policy,
        gamma=args.gamma,
        seconds=args.seconds,
        cold_s=COLD_S,
        seed=args.seed,
        delays=Delays(limits.ctrl_ns, limits.data_ns, limits.slack_ns),
        network=Network(
            Delay(least_ns=limits.ctrl_ns), limits.data_ns, done=Delay(least_ns=limits.return_ns)
        ),
    )


def summarise(
    outcome: Outcome, dones: list[tuple[int, BatchDone]], order: Order, num_gpus: int
) -> Run:
    """Count what a driver and the workers told."""
    arrivals, end = order.arrivals, outcome.end
    slo_ns = np.array([model.slo_ns for model in order.models])[arrivals.model]
    counted = arrivals.at_ns >= order.counted_from_ns
    is_good = (end == ANSWERED) & (outcome.took_ns <= slo_ns)
    is_late = (end == ANSWERED) & (outcome.took_ns > slo_ns)
    num_jobs = max(int(counted.sum()), 1)
    seconds = (arrivals.end_ns - order.counted_from_ns) / 1e9
    from_ns = outcome.began_at_ns + order.counted_from_ns
    to_ns = outcome.began_at_ns + arrivals.end_ns
    ran = [done for at_ns, done in dones if from_ns <= at_ns < to_ns and done.size]
    sizes = np.array([done.size for done in ran], np.int64)
    answered_ms = outcome.took_ns[counted & (end == ANSWERED)] / 1e6
    worst = max(
        1 - float(is_good[mine].mean())
        for index in range(len(order.models))
        if (mine := counted & (arrivals.model == index)).any()
    )
    return Run(
        offered_rps=num_jobs / seconds,
        good_rps=int((is_good & counted).sum()) / seconds,
        num_late=int((is_late & counted).sum()),
        num_dropped=int(((end == DROPPED) & counted).sum()),
        num_unanswered=int(((end != DROPPED) & (end != ANSWERED) & counted).sum()),
        bad_rate=1 - int((is_good & counted).sum()) / num_jobs,
        worst_bad_rate=worst,
        batch_p50=float(np.median(np.repeat(sizes, sizes))) if ran else 0.0,
        gpu_busy=sum(done.run_ns for done in ran) / 1e9 / seconds / num_gpus,
        latency_p50_ms=float(np.percentile(answered_ms, 50)) if len(answered_ms) else 0.0,
        latency_p99_ms=float(np.percentile(answered_ms, 99)) if len(answered_ms) else 0.0,
        cores=_cores(outcome, seconds),
        sent_late_ms=float(np.percentile(outcome.late_ns, 99)) / 1e6 if len(end) else 0.0,
    )


async def _run(
    args: argparse.Namespace, models: list[SimModel], scenario: Scenario, sim_goodput: float
) -> dict[str, Any]:
    _say(f"starting {args.gpus} workers")
    async with open_cluster(
        models, args.gpus, policy=args.policy, num_shards=args.shards, profile=args.profile
    ) as cluster:
        if not args.search:
            rps = args.rps if args.rps is not None else SHARE * sim_goodput
            found = await _drive(args, cluster, models, scenario.arrivals(rps))
            return _compare(found, scenario, scenario.run(rps))
        rps, best = await _search(args, cluster, models, scenario, sim_goodput)
    return {
        **_compare(best, scenario, scenario.run(rps)),
        "searched_rps": round(rps, 1),
        "sim_searched_rps": round(sim_goodput, 1),
        "searched_difference": round(rps / sim_goodput - 1, 4),
    }


async def _search(
    args: argparse.Namespace,
    cluster: Cluster,
    models: list[SimModel],
    scenario: Scenario,
    sim_goodput: float,
) -> tuple[float, Run]:
    """The highest load of a few tried at which every model keeps its target."""
    low, high, best = SEARCH_FROM * sim_goodput, SEARCH_TO * sim_goodput, None
    for step in range(SEARCH_STEPS):
        rps = SHARE * sim_goodput if step == 0 else (low + high) / 2
        found = await _drive(args, cluster, models, scenario.arrivals(rps))
        if found.worst_bad_rate <= BAD_RATE_MAX:
            low, best = rps, found
        else:
            high = rps
    if best is None:
        raise InvalidRequest(
            f"not even {high:.0f} r/s are served in time, half of what the simulator says: "
            "the machine is too busy, or too small for --gpus"
        )
    return low, best


async def _drive(
    args: argparse.Namespace, cluster: Cluster, models: list[SimModel], arrivals: Arrivals
) -> Run:
    order = Order(
        nats_url=cluster.nats_url,
        models=[Model(name=m.name, slo_ns=m.slo_ns, fastest_ns=m.batch_ns()[1]) for m in models],
        arrivals=arrivals,
        counted_from_ns=round(COLD_S * 1e9),
        pids=dict(cluster.pids),
        num_shards=args.shards,
    )
    outcome, dones = await cluster.drive(order)
    found = summarise(outcome, dones, order, args.gpus)
    cores = ", ".join(f"{name} {share:.2f}" for name, share in found.cores.items())
    _say(
        f"{found.good_rps:.1f} good of {found.offered_rps:.1f} r/s, {found.num_late} late, "
        f"{found.num_dropped} dropped, {found.num_unanswered} unanswered; batches of "
        f"{found.batch_p50:g}, GPUs {100 * found.gpu_busy:.1f}% busy; cores: {cores}"
    )
    return found


def _compare(found: Run, scenario: Scenario, simulated: Result) -> dict[str, Any]:
    return {
        "offered_rps": round(found.offered_rps, 1),
        "goodput_rps": round(found.good_rps, 1),
        "bad_rate": round(found.bad_rate, 5),
        "batch_p50": found.batch_p50,
        "gpu_busy": round(found.gpu_busy, 4),
        "sim_goodput_rps": round(simulated.good_rps, 1),
        "sim_bad_rate": round(simulated.bad_rate, 5),
        "sim_batch_p50": simulated.batch_p50,
        "sim_gpu_busy": round(simulated.gpu_busy, 4),
        "difference": round(found.good_rps / max(simulated.good_rps, 1e-9) - 1, 4),
        "num_late": found.num_late,
        "num_dropped": found.num_dropped,
        "num_unanswered": found.num_unanswered,
        "latency_p50_ms": round(found.latency_p50_ms, 2),
        "latency_p99_ms": round(found.latency_p99_ms, 2),
        "sent_late_p99_ms": round(found.sent_late_ms, 2),
        "cpu": found.cores,
        "policy": scenario.policy,
        "models": len(scenario.models),
        "gpus": scenario.num_gpus,
        "seconds": scenario.seconds,
        "seed": scenario.seed,
    }


def _cores(outcome: Outcome, seconds: float) -> dict[str, float]:
    cores: dict[str, float] = {}
    for name, spent_s in outcome.cpu_s.items():
        kind = "workers" if name.startswith("worker-") else name
        cores[kind] = cores.get(kind, 0.0) + spent_s / seconds
    return {name: round(share, 3) for name, share in cores.items()}


def _models(args: argparse.Namespace) -> list[SimModel]:
    if args.zoo is not None:
        models = copies_of_all(zoo_models(args.zoo, args.subset), args.models)
    else:
        models = copies(
            linear_model("model", args.alpha_ms, args.beta_ms, args.slo_ms), args.models
        )
    for model in models:
        if model.batch_ns()[1] > model.slo_ns:
            raise InvalidRequest(f"{model.name}: a single job takes longer than its target")
    return [
        SimModel(m.name, m.alpha_ms, m.beta_ms, m.slo_ms, min(m.size_max, BATCH_MAX))
        for m in models
    ]


def _above(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench emulated", description=__doc__)
    add = parser.add_argument
    add("--gpus", type=count, default=4, help="emulated workers, a process each")
    add("--rps", type=_above, help="offered load; else 90%% of what the simulator serves")
    add("--seconds", type=_above, default=15.0, help="of arrivals; the first is not counted")
    add("--alpha-ms", type=_above, default=5.0, help="time of each further job of a batch")
    add("--beta-ms", type=_above, default=20.0, help="time of any batch")
    add("--slo-ms", type=_above, default=100.0, help="target, from arrival to result")
    add("--zoo", choices=get_args(Device), help="instead: the paper's models on this device")
    add("--subset", choices=get_args(Subset), default="mixed", help="of the zoo")
    add("--models", type=count, default=1, help="copies of the model (of each, with --zoo)")
    add("--policy", default=DEFAULT_POLICY, help=POLICY_HELP)
    add("--popularity", default="equal", help="equal or zipf:S")
    add("--gamma", type=_above, default=1.0, help="shape of the gaps; 1 is Poisson, less bursts")
    add("--seed", type=int, default=1)
    add("--shards", type=count, default=1, help="scheduler shards; above 1 with a rank process")
    add("--search", action="store_true", help="the highest load with at most 1%% bad, in real time")
    add("--profile", type=Path, metavar="FILE", help="what cProfile sees of the scheduler")
    return parser
