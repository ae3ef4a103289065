"""Settings: one frozen class a service, read once from the environment (``SYMPHONY_...``) and an
optional file by `load_config`.

A class also holds constants that tests replace in the constructor. Those are declared with
`constant`, no variable of their own sets them.
"""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from shared.errors import ConfigError
from shared.ids import HostId, subject_token
from shared.runtime.access import NatsAccess, RedisAccess
from shared.runtime.settings import (
    DEVELOPMENT,
    DEVELOPMENT_FIELDS,
    ENV_PREFIX,
    development_fields,
    read_variables,
    shown,
)
from shared.runtime.urls import check_http_url, check_nats_url, check_redis_url

C = TypeVar("C", bound="ServiceConfig")


def constant(default: Any) -> Any:
    """A field that no user sets: by constructor, or one of `DEVELOPMENT_FIELDS`."""
    return Field(default=default, json_schema_extra={"is_constant": True})


def settings_of(kind: type[BaseSettings]) -> list[str]:
    """Names of the fields that variables set: all but the constants."""
    return [name for name, field in kind.model_fields.items() if not field.json_schema_extra]


def default_host_id() -> str:
    """This machine's name, with what a NATS subject cannot hold replaced."""
    return (
        "".join(c if c.isalnum() or c in "-_" else "-" for c in socket.gethostname())[:64] or "host"
    )


class ServiceConfig(BaseSettings):
    """What every service needs to start. Made by hand it reads no environment."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    nats_url: str = "nats://127.0.0.1:4222"
    nats_nkey_file: Path | None = None  # the seed that says who we are
    nats_ca_file: Path | None = None  # certificates to trust with tls://
    redis_url: str = "redis://127.0.0.1:6379/0"
    redis_password_file: Path | None = None  # instead of a password in the address
    redis_ca_file: Path | None = None  # certificates to trust with rediss://
    host_id: HostId = Field(default_factory=lambda: HostId(default_host_id()))
    instance: str = "0"
    data_dir: Path = Path("~/.symphony")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_port: int = 0  # 0: off; the frontend serves /metrics on its own port
    metrics_address: str = "127.0.0.1"
    otlp_endpoint: str = ""  # of a collector that takes traces by OTLP over HTTP; empty: none

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What it is made with, alone: the launcher looks at environments that are not its own."""
        return (init_settings,)

    @property
    def nats_access(self) -> NatsAccess:
        """What NATS asks for beside its address."""
        return NatsAccess(nkey_file=self.nats_nkey_file, ca_file=self.nats_ca_file)

    @property
    def redis_access(self) -> RedisAccess:
        """What Redis asks for beside its address."""
        return RedisAccess(password_file=self.redis_password_file, ca_file=self.redis_ca_file)

    @field_validator(
        "data_dir", "nats_nkey_file", "nats_ca_file", "redis_password_file", "redis_ca_file"
    )
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser()

    @field_validator("host_id", "instance")
    @classmethod
    def _token(cls, value: str) -> str:
        return subject_token(value)

    @field_validator("nats_url")
    @classmethod
    def _nats(cls, value: str) -> str:
        return check_nats_url(value)

    @field_validator("otlp_endpoint")
    @classmethod
    def _collector(cls, value: str) -> str:
        return check_http_url(value) if value else value

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: str) -> str:
        return check_redis_url(value)


class _Variables(EnvSettingsSource):
    """Variables as values of a class's fields: lists and objects decoded from JSON."""

    def __init__(self, kind: type[BaseSettings], variables: Mapping[str, str]) -> None:
        super().__init__(kind)
        self.env_vars = {name.lower(): value for name, value in variables.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError as error:
            raise ConfigError(f"{shown(_variable(field_name), value)}: no JSON: {error}") from None


def load_config(kind: type[C], environ: Mapping[str, str] | None = None) -> C:
    """Read an environment, and the file that it names, into `kind`. None: this process's.

    Raises:
        ConfigError: names the first wrong variable and its value.
    """
    variables = read_variables(os.environ if environ is None else environ)
    developed = development_fields(variables.get(DEVELOPMENT, ""))
    own = {name: value for name, value in developed.items() if name in kind.model_fields}
    try:
        return kind(**_Variables(kind, variables)(), **own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # each value is right, but not beside the others
            raise ConfigError(why) from None
        field = str(first["loc"][0])
        if field in DEVELOPMENT_FIELDS:
            raise ConfigError(
                f"{DEVELOPMENT}: {field}={str(own.get(field, first['input']))!r}: {why}"
            ) from None
        name = _variable(field)
        value = variables.get(name, str(first.get("input")))
        raise ConfigError(f"{shown(name, value)}: {why}") from None


def load_config_or_exit(kind: type[C]) -> C:
    """`load_config` for a process's start: prints the one line and exits with status 1."""
    try:
        return load_config(kind)
    except ConfigError as error:
        print(f"symphony: {error.message}", file=sys.stderr)
        raise SystemExit(1) from None


def _variable(field_name: str) -> str:
    return ENV_PREFIX + field_name.upper()
