"""One run of the simulated cluster for a number of GPUs."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter

from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.result import ClusterResult
from loadtest.cluster.run import run_cluster
from loadtest.cluster.worker import PREFILL_TOKENS_MAX
from loadtest.planning.demand import Demand
from loadtest.planning.machines import Machines
from loadtest.planning.people import ANSWER_S_A_TOKEN, people
from loadtest.planning.share import Part, part_of
from loadtest.sim.timeline import SECOND
from shared.profiles import LatencyProfile

BRING_IN_SLACK = 1.25  # histories are spread over so many times what computing them takes
BRING_IN_LEAST_S = 5.0
SETTLE_SHARE = 0.4  # of a cycle: people begin anywhere in one, so what runs is soon as it stays
SETTLE_LEAST_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is tried.

    Attributes:
        gpus: of the whole deployment, of which `users_max` people are simulated, or more if those
            of two GPUs are more.
        seconds: that count.
    """

    profile: LatencyProfile
    demand: Demand
    machines: Machines
    gpus: int
    seconds: float
    seed: int
    users_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a trial showed.

    Attributes:
        part: that was simulated.
        seconds: of virtual time, all of them.
    """

    gpus: int
    part: Part
    seconds: float
    result: ClusterResult


def simulate(trial: Trial) -> Seen:
    """Run it: the same for the same trial, but for `result.took_s`.

    Raises:
        AssertionError: an invariant of the cluster does not hold.
    """
    demand, machines = trial.demand, trial.machines
    part = part_of(demand.users, trial.gpus, machines.gpus, trial.users_max)
    bring_in_s = bring_in_seconds(trial.profile, demand, part)
    cycle_s = demand.think_s + demand.reply_tokens * ANSWER_S_A_TOKEN
    warm_s = bring_in_s + max(SETTLE_SHARE * cycle_s, SETTLE_LEAST_S)
    with TemporaryDirectory(prefix="symphony-plan-") as folder:
        file = Path(folder) / "profile.json"
        file.write_bytes(TypeAdapter(LatencyProfile).dump_json(trial.profile))
        options = ClusterOptions(
            profile=str(file),
            gpus=part.gpus,
            gpus_per_host=part.gpus_per_host,
            dram_gb=machines.dram_gb,
            disk_gb=machines.disk_gb,
            link_gbit=machines.link_gbit,
            host_share=part.host_share,
            users=part.users,
            missed=1 - demand.hinted,
            seed=trial.seed,
            duration_ns=round(trial.seconds * SECOND),
            warm_ns=round(warm_s * SECOND),
            grouped=True,
        )
        scripts = people(
            replace(demand, users=part.users),
            bring_in_ns=round(bring_in_s * SECOND),
            lasts_ns=options.lasts_ns - round(bring_in_s * SECOND),
            seed=trial.seed,
        )
        result = run_cluster(options, scripts)
    return Seen(
        gpus=trial.gpus,
        part=part,
        seconds=warm_s + trial.seconds,
        result=result,
    )


def bring_in_seconds(profile: LatencyProfile, demand: Demand, part: Part) -> float:
    """Over which histories are brought in, so that none waits there for long."""
    token_ms = profile.prefill_ms_per_token + profile.base_ms / PREFILL_TOKENS_MAX
    computed_s = part.users * demand.context * token_ms / 1e3 / part.gpus
    passes_s = part.users * profile.base_ms / 1e3 / part.gpus
    return BRING_IN_LEAST_S + BRING_IN_SLACK * (computed_s + passes_s)
