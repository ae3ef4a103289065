"""The tracker's settings."""

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from services.tracker.core import Limits
from shared.lease.settings import LeaseConfig
from shared.runtime.config import constant
from shared.wire.hint_accounts import HintLimits
from shared.wire.tracker_shards import TRACKER_SHARDS_MAX


class TrackerConfig(LeaseConfig):
    """Times in seconds. `services.tracker.core.Limits` documents the fields `tracker_...`,
    `shared.wire.hint_accounts.HintLimits` the fields `hints_...`.
    """

    tracker_tenant_advisories_max: int = Field(default=0, ge=0)
    hints_per_client: int = Field(default=2048, ge=0)
    hints_per_tenant: int = Field(default=8192, ge=0)
    scheduler_shards: int = Field(default=1, gt=0)
    tracker_shards: int = Field(default=1, ge=1, le=TRACKER_SHARDS_MAX)
    tracker_shard: int = Field(default=0, ge=0)
    agent_graphs: Path | None = None  # a file or a folder of `symphony profile-agents`

    # An agent's tool call may take this much longer than announced, without keeping memory long.
    tracker_slack_s: float = constant(30.0)
    # A scheduler is replaced in about two seconds.
    tracker_retry_s: float = constant(1.0)
    # An advisory that says nothing lives so long beyond its turn's time.
    tracker_ttl_s: float = constant(60.0)
    # Seconds of the highest load seen.
    tracker_queue_max: int = constant(65_536)

    @field_validator("tracker_shard")
    @classmethod
    def _is_one_of_them(cls, value: int, info: ValidationInfo) -> int:
        num_shards = info.data.get("tracker_shards", TRACKER_SHARDS_MAX)
        if value >= num_shards:
            raise ValueError(f"must be below SYMPHONY_TRACKER_SHARDS ({num_shards})")
        return value

    @property
    def leadership(self) -> str:
        """Which of the trackers that work at the same time this one is, or is a spare of. The first
        shard has the name of an undivided tracker: the two never lead beside each other.
        """
        return f"tracker-{self.tracker_shard}" if self.tracker_shard else "tracker"

    def limits(self) -> Limits:
        """The core's numbers."""
        return Limits(
            ttl_ns=_ns(self.tracker_ttl_s),
            slack_ns=_ns(self.tracker_slack_s),
            retry_ns=_ns(self.tracker_retry_s),
            tenant_advisories_max=self.tracker_tenant_advisories_max,
            accounts=HintLimits(per_place=self.hints_per_client, per_tenant=self.hints_per_tenant),
        )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
