"""The tracker's settings."""

from pathlib import Path

from pydantic import Field

from services.tracker.core import Limits
from shared.hint_accounts import HintLimits
from shared.lease.settings import LeaseConfig


class TrackerConfig(LeaseConfig):
    """Times in seconds; what they mean is told in `services.tracker.core.Limits`, and of
    `hints_per_...` in `shared.hint_accounts.HintLimits`.
    """

    tracker_ttl_s: float = Field(default=60.0, gt=0)
    tracker_slack_s: float = Field(default=30.0, ge=0)
    tracker_retry_s: float = Field(default=1.0, gt=0)
    tracker_keep_s: float = Field(default=600.0, ge=0)
    tracker_advisories_max: int = Field(default=100_000, gt=0)
    tracker_tenant_advisories_max: int = Field(default=0, ge=0)
    tracker_act_chance_min: float = Field(default=0.1, ge=0, le=1)
    hints_per_client: int = Field(default=2048, ge=0)
    hints_per_tenant: int = Field(default=8192, ge=0)
    scheduler_shards: int = Field(default=1, gt=0)
    tracker_queue_max: int = Field(default=65_536, gt=0)
    agent_graphs: Path | None = None  # a file or a folder of `symphony profile-agents`

    def limits(self) -> Limits:
        """The core's numbers."""
        return Limits(
            ttl_ns=_ns(self.tracker_ttl_s),
            slack_ns=_ns(self.tracker_slack_s),
            retry_ns=_ns(self.tracker_retry_s),
            keep_ns=_ns(self.tracker_keep_s),
            advisories_max=self.tracker_advisories_max,
            tenant_advisories_max=self.tracker_tenant_advisories_max,
            act_chance_min=self.tracker_act_chance_min,
            accounts=HintLimits(per_place=self.hints_per_client, per_tenant=self.hints_per_tenant),
        )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
