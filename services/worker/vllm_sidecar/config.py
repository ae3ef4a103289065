"""Settings of the sidecar."""

from pathlib import Path

from pydantic import Field

from shared.runtime.config import ServiceConfig


class SidecarConfig(ServiceConfig):
    """Attributes:
    http_address, http_port: where hints come.
    """

    http_address: str = "127.0.0.1"
    http_port: int = Field(default=8100, ge=0, le=65535)

    @property
    def socket(self) -> Path:
        """Where vLLM's connectors come."""
        return self.data_dir.expanduser() / "vllm.sock"
