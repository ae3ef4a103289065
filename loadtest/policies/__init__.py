"""Batch policies to compare with, after other systems. The scheduler takes them by import path, as
it takes anybody's; here they have names.
"""

from services.scheduler import policies
from services.scheduler.core.batching.batcher import Batcher
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rules import RULES

BASELINES = {
    "clockwork": "loadtest.policies.clockwork:ClockworkBatcher",
    "nexus": "loadtest.policies.nexus:NexusBatcher",
    "shepherd": "loadtest.policies.shepherd:ShepherdBatcher",
}
POLICIES = (*RULES, *BASELINES)


def path_of(policy: str) -> str:
    """What `SYMPHONY_BATCH_POLICY` is for this name."""
    return BASELINES.get(policy, policy)


def make_batcher(policy: str, delays: Delays | None = None) -> Batcher:
    """The batcher of this name, a baseline's too.

    Raises:
        ConfigError: there is none.
    """
    return policies.make_batcher(path_of(policy), delays)
