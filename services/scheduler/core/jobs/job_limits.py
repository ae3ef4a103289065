"""Numbers that bound and time the handling of jobs."""

from dataclasses import dataclass

from services.scheduler.core.batching.scaling import ScalingLimits
from services.scheduler.core.partition.limits import SubclusterLimits

MS_NS = 1_000_000
_SCALING = ScalingLimits(gpus_max=4096)
_SUBCLUSTERS = SubclusterLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Durations in ns, bounds in entries.

    Attributes:
        learning_ns: after its start a scheduler dispatches nothing for this long, so that it first
            receives the workers' reports of running jobs.
        ctrl_ns, data_ns: from a dispatch until a worker has the batch and its inputs: a constant,
            and an amount per job (section 3.2, appendix D).
        slack_ns: how late a timer of this process may fire.
        return_ns: from the end of a batch until the frontend has the results.
        overdue_ns: how far past its expected end a batch is when its worker is probed.
        grant_ns: how long a GPU stays granted to a shard that does not book it.
        slo_max_ns: longer targets are cut to this.
        scaling: limits of the advice on the number of workers.
        subclusters: limits of orders to load and unload models.
        ended_ns: how long an ended job is remembered, so that a submit that crosses its result does
            not run it again.
    """

    learning_ns: int = 150 * MS_NS
    ctrl_ns: int = 2 * MS_NS
    data_ns: int = 50_000
    slack_ns: int = 4 * MS_NS
    return_ns: int = 1 * MS_NS
    overdue_ns: int = 50 * MS_NS
    grant_ns: int = 50 * MS_NS
    ended_ns: int = 200 * MS_NS
    jobs_max: int = 200_000
    slo_max_ns: int = 86_400_000 * MS_NS
    scaling: ScalingLimits = _SCALING
    subclusters: SubclusterLimits = _SUBCLUSTERS
