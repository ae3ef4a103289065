"""The scheduler's settings."""

from pydantic import Field, field_validator

from services.scheduler.core import POLICIES, Limits
from shared.config import ServiceConfig


class SchedulerConfig(ServiceConfig):
    """Times in seconds; what they mean is told in `services.scheduler.core.Limits`."""

    scheduler_policy: str = "balance"
    scheduler_learning_s: float = Field(default=0.75, ge=0)
    scheduler_dead_after_s: float = Field(default=2.5, gt=0)
    scheduler_placement_wait_s: float = Field(default=15.0, ge=0)
    scheduler_affinity_margin: int = Field(default=1, ge=0)
    scheduler_turns_max: int = Field(default=100_000, gt=0)
    scheduler_queue_max: int = Field(default=65_536, gt=0)

    @field_validator("scheduler_policy")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if value not in POLICIES:
            raise ValueError(f"no such placement policy: use one of {', '.join(POLICIES)}")
        return value

    def limits(self) -> Limits:
        """The core's numbers."""
        return Limits(
            learning_ns=_ns(self.scheduler_learning_s),
            dead_after_ns=_ns(self.scheduler_dead_after_s),
            placement_wait_ns=_ns(self.scheduler_placement_wait_s),
            affinity_margin=self.scheduler_affinity_margin,
            turns_max=self.scheduler_turns_max,
        )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
