"""Jobs of one-shot models: their frontends, batches and workers.

`services.scheduler.core.batching` decides when a batch starts and which jobs it contains.
"""

from services.scheduler.core.base.effects import PublishAdvice
from services.scheduler.core.jobs.core import JobsCore
from services.scheduler.core.jobs.effects import (
    AnswerDropped,
    CountJobs,
    Deposed,
    JobsEffect,
    SendBatch,
    SendBooked,
    SendGrant,
    SendHold,
    SendOffer,
)
from services.scheduler.core.jobs.job_limits import JobLimits
from services.scheduler.core.jobs.rank_core import RankCore
from services.scheduler.core.jobs.shard_core import ShardJobsCore

__all__ = [
    "AnswerDropped",
    "CountJobs",
    "Deposed",
    "JobLimits",
    "JobsCore",
    "JobsEffect",
    "PublishAdvice",
    "RankCore",
    "SendBatch",
    "SendBooked",
    "SendGrant",
    "SendHold",
    "SendOffer",
    "ShardJobsCore",
]
