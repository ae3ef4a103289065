"""The scheduler's settings."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from services.scheduler.core import DEFAULT_POLICY as DEFAULT_PLACEMENT
from services.scheduler.core import Limits
from services.scheduler.core.batching.rules import make_rules
from services.scheduler.policies import DEFAULT_POLICY, make_batcher, make_placement
from shared.errors import ConfigError
from shared.lease.settings import LeaseConfig
from shared.runtime.config import constant
from shared.wire.shards import Share
from shared.wire.tracker_shards import TRACKER_SHARDS_MAX


class SchedulerConfig(LeaseConfig):
    """Times in seconds; `services.scheduler.core.Limits` documents what they mean."""

    scheduler_policy: str = DEFAULT_PLACEMENT
    scheduler_placement_wait_s: float = Field(default=15.0, ge=0)
    scheduler_role: Literal["all", "rank", "shard"] = "all"
    scheduler_shard: int = Field(default=0, ge=0)
    scheduler_shards: int = Field(default=1, gt=0)
    tracker_shards: int = Field(default=1, ge=1, le=TRACKER_SHARDS_MAX)
    batch_policy: str = DEFAULT_POLICY

    # One and a half report intervals of a worker, and five of them.
    scheduler_learning_s: float = constant(0.75)
    scheduler_dead_after_s: float = constant(2.5)
    # Seconds of the highest load seen; what is dropped, its sender repeats.
    scheduler_queue_max: int = constant(65_536)

    @field_validator("scheduler_policy")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        try:
            make_placement(value, Limits())
        except ConfigError as error:
            raise ValueError(error.message) from None
        return value

    @model_validator(mode="after")
    def _one_of_the_shards(self) -> "SchedulerConfig":
        if self.scheduler_role == "shard" and self.scheduler_shard >= self.scheduler_shards:
            raise ValueError(
                f"SYMPHONY_SCHEDULER_SHARD {self.scheduler_shard} must be below "
                f"SYMPHONY_SCHEDULER_SHARDS ({self.scheduler_shards})"
            )
        return self

    @field_validator("batch_policy")
    @classmethod
    def _known_batch_policy(cls, value: str, info: ValidationInfo) -> str:
        make = make_rules if info.data.get("scheduler_role") == "shard" else make_batcher
        try:
            make(value)
        except ConfigError as error:
            raise ValueError(error.message) from None
        return value

    @property
    def shard_name(self) -> str:
        """Which of the schedulers that work at the same time this one is, or is a spare of."""
        is_shard = self.scheduler_role == "shard"
        return f"shard-{self.scheduler_shard}" if is_shard else self.scheduler_role

    @property
    def share(self) -> Share:
        """What of all turns this process places."""
        if self.scheduler_role == "shard":
            return Share(self.scheduler_shard, self.scheduler_shards)
        return Share()

    def limits(self) -> Limits:
        """The core's numbers."""
        return Limits(
            learning_ns=_ns(self.scheduler_learning_s),
            dead_after_ns=_ns(self.scheduler_dead_after_s),
            placement_wait_ns=_ns(self.scheduler_placement_wait_s),
        )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
