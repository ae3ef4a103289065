"""Settings: one frozen class a service, read once from the environment (``SYMPHONY_...``) and an
optional file.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.errors import ConfigError
from shared.ids import HostId, subject_token

ENV_PREFIX = "SYMPHONY_"

C = TypeVar("C", bound="ServiceConfig")


def default_host_id() -> str:
    """This machine's name, with what a NATS subject cannot hold replaced."""
    return (
        "".join(c if c.isalnum() or c in "-_" else "-" for c in socket.gethostname())[:64] or "host"
    )


class ServiceConfig(BaseSettings):
    """What every service needs to start."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_file=os.environ.get("SYMPHONY_ENV_FILE"),
        frozen=True,
        extra="ignore",
    )

    nats_url: str = "nats://127.0.0.1:4222"
    redis_url: str = "redis://127.0.0.1:6379/0"
    host_id: HostId = Field(default_factory=lambda: HostId(default_host_id()))
    instance: str = "0"
    data_dir: Path = Path("~/.symphony")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_port: int = 0  # 0: off; the frontend serves /metrics on its own port
    metrics_address: str = "127.0.0.1"

    @field_validator("data_dir")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("host_id", "instance")
    @classmethod
    def _token(cls, value: str) -> str:
        return subject_token(value)


def load_config(kind: type[C]) -> C:
    """Read the environment into `kind`.

    Raises:
        ConfigError: names the first wrong variable and its value.
    """
    try:
        return kind()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ENV_PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigError(f"{name}={first.get('input')!r}: {first['msg']}") from None


def load_config_or_exit(kind: type[C]) -> C:
    """`load_config` for a process's start: prints the one line and exits with status 1."""
    try:
        return load_config(kind)
    except ConfigError as error:
        print(f"symphony: {error.message}", file=sys.stderr)
        raise SystemExit(1) from None
