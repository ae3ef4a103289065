"""The tracker's settings."""

from pathlib import Path

from pydantic import Field

from services.tracker.core import Limits
from shared.config import ServiceConfig


class TrackerConfig(ServiceConfig):
    """Times in seconds; what they mean is told in `services.tracker.core.Limits`."""

    tracker_ttl_s: float = Field(default=60.0, gt=0)
    tracker_slack_s: float = Field(default=30.0, ge=0)
    tracker_retry_s: float = Field(default=1.0, gt=0)
    tracker_keep_s: float = Field(default=600.0, ge=0)
    tracker_advisories_max: int = Field(default=100_000, gt=0)
    tracker_tenant_advisories_max: int = Field(default=0, ge=0)
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
        )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
