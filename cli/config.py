"""The launcher's own settings."""

from pydantic import Field

from shared.config import ServiceConfig


class LauncherConfig(ServiceConfig):
    """Attributes:
    log_bytes_max: a log larger than this is rotated; 0: none is.
    status_interval_s: how often every process is asked for its status.
    stuck_after_s: a process that has not answered for so long is killed and started again; 0: none
        ever is.
    redis_bytes_max: memory of our own Redis; at three quarters of it the oldest sessions of the
        tenant with most go.
    """

    log_bytes_max: int = Field(default=64 * 1024**2, ge=0)
    status_interval_s: float = Field(default=2.0, ge=0.05, le=60.0)
    stuck_after_s: float = Field(default=15.0, ge=0.0, le=3600.0)
    redis_bytes_max: int = Field(default=512 * 1024**2, ge=4 * 1024**2)
