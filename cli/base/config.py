"""The launcher's own settings."""

from pydantic import Field

from shared.runtime.config import ServiceConfig, constant


class LauncherConfig(ServiceConfig):
    """Attributes:
    log_bytes_max: a log larger than this is rotated; 0: never.
    redis_bytes_max: memory of the Redis that `up` starts; at three quarters of it the oldest
        sessions of the tenant with the most are deleted.
    """

    log_bytes_max: int = Field(default=64 * 1024**2, ge=0)
    redis_bytes_max: int = Field(default=512 * 1024**2, ge=4 * 1024**2)

    # How often every process is asked for its state, s.
    status_interval_s: float = constant(2.0)
    # A process without an answer for this long is killed and restarted, unless `--no-restart` is
    # given; 0: never. Longer than any pause of a process that works.
    stuck_after_s: float = constant(15.0)
