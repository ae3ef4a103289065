"""The launcher's own settings."""

from pydantic import Field

from shared.config import ServiceConfig


class LauncherConfig(ServiceConfig):
    """Attributes:
    log_bytes_max: a log larger than this is put aside and begun anew; 0: none ever is.
    """

    log_bytes_max: int = Field(default=64 * 1024**2, ge=0)
