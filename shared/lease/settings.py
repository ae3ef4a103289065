"""The settings of a lease, the same for every service that has spares."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from shared.config import ServiceConfig
from shared.lease.core.times import LeaseTimes


class LeaseConfig(ServiceConfig):
    """Of a service of which one process leads and others are its spares. They began with the
    scheduler, and have its name.
    """

    scheduler_lease: Literal["auto", "off"] = "auto"
    scheduler_lease_beat_ms: int = Field(default=250, gt=0)
    scheduler_lease_ttl_ms: int = Field(default=2000, gt=0)

    @field_validator("scheduler_lease_ttl_ms")
    @classmethod
    def _outlives_a_lost_renewal(cls, value: int, info: ValidationInfo) -> int:
        beat_ms = info.data.get("scheduler_lease_beat_ms", 0)
        if value < 3 * beat_ms:
            raise ValueError(
                f"must be at least three times SYMPHONY_SCHEDULER_LEASE_BEAT_MS ({beat_ms})"
            )
        return value

    def lease_times(self) -> LeaseTimes:
        """Beat and end of the leader's lease."""
        return LeaseTimes(
            beat_ns=self.scheduler_lease_beat_ms * 1_000_000,
            ttl_ns=self.scheduler_lease_ttl_ms * 1_000_000,
        )
