"""Jobs of one-shot models: who submitted them, in which batch they are, on which worker.

When a batch starts and what is in it is decided in `services.scheduler.core.batching`.
"""

from services.scheduler.core.jobs.core import JobsCore
from services.scheduler.core.jobs.effects import (
    AnswerDropped,
    CountJobs,
    Deposed,
    JobsEffect,
    PublishAdvice,
    SendBatch,
    SendBooked,
    SendGrant,
    SendOffer,
)
from services.scheduler.core.jobs.limits import JobLimits
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
    "SendOffer",
    "ShardJobsCore",
]
