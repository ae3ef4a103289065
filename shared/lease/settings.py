"""The settings of a lease, the same for every service that has spares."""

from typing import Literal

from pydantic import ValidationInfo, field_validator

from shared.lease.core.times import LeaseTimes
from shared.runtime.config import ServiceConfig, constant


class LeaseConfig(ServiceConfig):
    """Constants of a service of which one process leads and others are its spares.

    Attributes:
        scheduler_lease: `auto`: with a lease where NATS has JetStream, without one elsewhere; `off`
            leads at once, without spares.
        scheduler_lease_beat_ms: between two renewals by the leader; a spare looks four times as
            often.
        scheduler_lease_ttl_ms: silence after which a spare takes over: turns that wait notice it.
    """

    scheduler_lease: Literal["auto", "off"] = constant("auto")
    scheduler_lease_beat_ms: int = constant(250)
    scheduler_lease_ttl_ms: int = constant(2000)

    @field_validator("scheduler_lease_ttl_ms")
    @classmethod
    def _outlives_a_lost_renewal(cls, value: int, info: ValidationInfo) -> int:
        beat_ms = info.data.get("scheduler_lease_beat_ms", 0)
        if value < 3 * beat_ms:
            raise ValueError(f"must be at least three times scheduler_lease_beat_ms ({beat_ms})")
        return value

    def lease_times(self) -> LeaseTimes:
        """Beat and end of the leader's lease."""
        return LeaseTimes(
            beat_ns=self.scheduler_lease_beat_ms * 1_000_000,
            ttl_ns=self.scheduler_lease_ttl_ms * 1_000_000,
        )
