"""Settings of the frontend."""

import ssl
from pathlib import Path, PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from services.frontend.core.http.request_guard import HTTP_PORTS, HostPort, parse_host
from services.frontend.core.limits.quotas import PRIORITIES, TenantLimits
from services.frontend.core.models.model_names import parse_name
from shared.adapters.record import ADAPTER_BYTES_MAX
from shared.errors import ConfigError
from shared.expiry import EXPIRY_S_MAX
from shared.runtime.config import ServiceConfig, constant
from shared.wire.hint_accounts import HintLimits
from shared.wire.sessions import DEFAULT_EXPIRY_S
from shared.wire.tracker_shards import TRACKER_SHARDS_MAX


def _in_order(value: tuple[int, int]) -> tuple[int, int]:
    if value[0] > value[1]:
        raise ValueError("the lowest comes first")
    return value


TURN_S_MAX = 24 * 3600  # notes of deleted sessions are kept for longer

PriorityRange = Annotated[tuple[int, int], AfterValidator(_in_order)]


class FrontendConfig(ServiceConfig):
    """Attributes:
    http_address: where to listen. Anything but loopback needs `api_keys_file`.
    http_cert_file, http_key_file: PEM files, of a certificate (and those up to its authority) and
        of its key; with both the frontend speaks HTTPS only.
    api_keys_file: JSON list of ``{"key" or "key_sha256", "tenant", "scopes", "limits"}``.
    allow_anonymous: listen beyond loopback without keys.
    allow_hosts: more names by which clients and web pages reach it, with a port or without.
    cors_origins: origins whose web pages may send requests and read responses; ``*``: all, which
        needs API keys.
    body_bytes_max: larger request bodies are answered with 413.
    requests_max: choices generated at once, of all requests together; more are answered with 429.
    connections_per_address: more from one address are closed at once; 0: any number.
    text_processes: most processes that render and tokenize long texts.
    max_tokens_default: of a reply whose request names none; 0: what fits the model.
    tool_parser: format of a model's tool calls, see `core.tools.families`; `auto`: found in its
        chat template.
    reasoning_parser: format of a model's reasoning, see `core.replies.thoughts`; `auto`: found in
        its chat template; `none`: reasoning is part of the content.
    served_model_names: other names of models, each ``NAME=MODEL``, or ``NAME``: of the only model
        for text.
    deployed_models: models that the deployment serves: 503 while no worker does, and not 404. Ids,
        or folders as in the workers' ``SYMPHONY_MODELS``.
    metrics_of_house: ``/metrics`` has those of every process of the deployment.
    scheduler_shards: processes among which turns are divided by session, and one-shot models.
    tracker_shards: processes among which the tracker divides sessions and workflows.
    job_bytes_max: of all inputs for one-shot models, and of large bodies of any kind.
    adapter_bytes_max: of an adapter's files; more are answered with 413.
    session_expiry_s: how long an unused session is remembered.
    turn_s_max: a turn that runs longer ends with an error.
    tenant_...: limits of each tenant that has none of its own in `api_keys_file`: see
        `core.limits.quotas.TenantLimits`; each frontend counts its own requests.
    hints_per_client, hints_per_tenant: advisories that may stay unused, see
        `shared.wire.hint_accounts.HintLimits`; each frontend counts its own.
    trace_share: share of requests that are traced, of those that bring no trace context.
    drain_s: on stop, how long open streams may take to finish.
    """

    http_address: str = "127.0.0.1"
    http_port: int = Field(default=8080, ge=0, le=65535)
    http_cert_file: Path | None = None
    http_key_file: Path | None = None
    api_keys_file: Path | None = None
    allow_anonymous: bool = False
    allow_hosts: list[str] = Field(default_factory=list)
    cors_origins: list[str] = Field(default_factory=list)
    body_bytes_max: int = Field(default=20_000_000, gt=0)
    text_processes: int = Field(default=2, gt=0)
    requests_max: int = Field(default=4096, gt=0)
    connections_per_address: int = Field(default=1024, ge=0)
    max_tokens_default: int = Field(default=0, ge=0)
    reasoning_parser: Literal["auto", "none", "qwen3", "deepseek_r1", "mistral", "seed_oss"] = (
        "auto"
    )
    metrics_of_house: bool = False
    tool_parser: Literal["auto", "hermes", "llama3", "mistral", "json"] = "auto"
    served_model_names: list[str] = Field(default_factory=list)
    deployed_models: list[str] = Field(default_factory=list)
    session_expiry_s: int = Field(default=DEFAULT_EXPIRY_S, gt=0)
    turn_s_max: float = Field(default=3600.0, gt=0, le=TURN_S_MAX)
    scheduler_shards: int = Field(default=1, gt=0)
    tracker_shards: int = Field(default=1, ge=1, le=TRACKER_SHARDS_MAX)
    job_bytes_max: int = Field(default=512 * 1024 * 1024, gt=0)
    adapter_bytes_max: int = Field(default=ADAPTER_BYTES_MAX, gt=0)
    trace_share: float = Field(default=1.0, ge=0, le=1)
    drain_s: float = Field(default=5.0, ge=0)
    tenant_turns_max: int = Field(default=0, ge=0)
    tenant_sessions_max: int = Field(default=100_000, ge=0)
    tenant_session_bytes_max: int = Field(default=256 * 1024 * 1024, ge=0)
    tenant_priority: PriorityRange = PRIORITIES
    tenant_kv_expiry_s: int = Field(default=0, ge=0, le=EXPIRY_S_MAX)
    tenant_kv_expiry_s_max: int = Field(default=0, ge=0, le=EXPIRY_S_MAX)
    hints_per_client: int = Field(default=2048, ge=0)
    hints_per_tenant: int = Field(default=8192, ge=0)

    # JSON values of a body: parsing this many takes some 10 ms of the event loop. More: 400.
    body_values_max: int = constant(262_144)
    # Inputs of one request to a one-shot model, as at OpenAI.
    inputs_max: int = constant(2048)
    # Inputs for one-shot models at once; `job_bytes_max` is reached earlier by all but tiny ones.
    jobs_max: int = constant(65_536)
    # One image as it comes: what cameras make.
    image_bytes_max: int = constant(10_000_000)
    image_pixels_max: int = constant(40_000_000)
    # Rendering and tokenizing one text: the largest body with the slowest tokenizer takes less.
    text_limit_s: float = constant(10.0)
    # A client may take so long for a request's head, or to read what was sent.
    slow_request_s: float = constant(30.0)
    stalled_reader_s: float = constant(30.0)
    # A turn is submitted again when no worker reports it, or its worker is silent; it fails without
    # any scheduler for this long. Longer than a scheduler's or worker's replacement takes.
    resubmit_unpulled_s: float = constant(3.0)
    resubmit_silent_s: float = constant(10.0)
    give_up_s: float = constant(60.0)
    # Of a prompt that goes along with its first submit; some 9,000 tokens.
    prompt_sent_bytes_max: int = constant(49_152)
    # Additions and removals of adapters by a tenant's own keys: each is a write in every kvstore.
    tenant_adapter_changes_per_minute: int = constant(240)

    @field_validator("deployed_models")
    @classmethod
    def _named_as_by_workers(cls, models: list[str]) -> list[str]:
        return [PurePath(each).name if each.startswith("/") else each for each in models]

    @field_validator("allow_hosts")
    @classmethod
    def _places(cls, value: list[str]) -> list[str]:
        for name in value:
            if parse_host(name) is None:
                raise ValueError(f"{name!r} is no name: write chat.example.org or 10.0.0.7:8080")
        return value

    @field_validator("served_model_names")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        for given in value:
            parse_name(given)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            scheme, _, authority = origin.partition("://")
            if origin != "*" and (scheme not in HTTP_PORTS or parse_host(authority) is None):
                raise ValueError(f"{origin!r} is no origin: write https://app.example.org")
        return [origin.lower() for origin in value]

    @property
    def tls_files(self) -> tuple[Path, Path] | None:
        """Certificate and key, if the frontend speaks HTTPS.

        Raises:
            ConfigError: only one of the two is given, or they cannot be used.
        """
        cert, key = self.http_cert_file, self.http_key_file
        if cert is None and key is None:
            return None
        if cert is None or key is None:
            raise ConfigError("SYMPHONY_HTTP_CERT_FILE and SYMPHONY_HTTP_KEY_FILE: give both")
        where = f"SYMPHONY_HTTP_CERT_FILE={str(cert)!r}, SYMPHONY_HTTP_KEY_FILE={str(key)!r}"
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        except ssl.SSLError as error:
            raise ConfigError(f"{where}: {error.reason or error}") from None
        except OSError as error:
            raise ConfigError(f"{where}: {error.strerror}") from None
        return cert, key

    @property
    def hint_limits(self) -> HintLimits:
        """Limits of senders of advisories."""
        return HintLimits(per_place=self.hints_per_client, per_tenant=self.hints_per_tenant)

    @property
    def tenant_limits(self) -> TenantLimits:
        """Limits of a tenant that has none of its own."""
        return TenantLimits(
            turns=self.tenant_turns_max,
            sessions=self.tenant_sessions_max,
            session_bytes=self.tenant_session_bytes_max,
            priority=self.tenant_priority,
            kv_expiry_s=self.tenant_kv_expiry_s,
            kv_expiry_s_max=self.tenant_kv_expiry_s_max,
        )

    @property
    def allowed_origins(self) -> frozenset[str]:
        """`cors_origins`.

        Raises:
            ConfigError: they are all, and there are no API keys.
        """
        if "*" in self.cors_origins and self.api_keys_file is None:
            raise ConfigError(
                "SYMPHONY_CORS_ORIGINS: all origins may be allowed only with API keys: set "
                "SYMPHONY_API_KEYS_FILE, or name the origins"
            )
        return frozenset(self.cors_origins)

    @property
    def allowed_places(self) -> frozenset[HostPort]:
        """`allow_hosts`, parsed."""
        places = map(parse_host, self.allow_hosts)
        return frozenset(place for place in places if place is not None)
