"""What can be known to be wrong before the first process starts."""

import asyncio
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode, urlsplit

from cli.base.config import LauncherConfig
from cli.inspection.snapshot import redis_trouble
from cli.start.options import DeploymentOptions
from cli.start.plan import ChildPlan, DeploymentPlan, check_port
from services.frontend.config import FrontendConfig
from services.frontend.tenants.auth import load_keyring
from services.kvstore.config import KvstoreConfig
from services.kvstore.room import decide_sizes
from services.scheduler.config import SchedulerConfig
from services.tracker.config import TrackerConfig
from services.worker.config import WorkerConfig
from shared.bus import Bus
from shared.errors import ConfigError, PeerUnavailable
from shared.ids import TenantId, tenant_token
from shared.runtime.access import NatsAccess, RedisAccess
from shared.runtime.config import ServiceConfig, load_config
from shared.runtime.urls import (
    check_nats_url,
    check_redis_url,
    hide_password,
    split_address,
)

NATS_PATIENCE_S = 10.0
SECRETS = ("username", "password")
CONFIGS: dict[str, type[ServiceConfig]] = {
    "frontend": FrontendConfig,
    "kvstore": KvstoreConfig,
    "scheduler": SchedulerConfig,
    "tracker": TrackerConfig,
    "worker": WorkerConfig,
}


def check_addresses(options: DeploymentOptions) -> None:
    """Look at the servers' addresses as they are written.

    Raises:
        ConfigError: one cannot be an address; names the option.
    """
    for option, url, check in (
        ("--nats-url", options.nats_url, check_nats_url),
        ("--redis-url", options.redis_url, check_redis_url),
    ):
        try:
            if url is not None:
                check(url)
        except ValueError as error:
            raise ConfigError(f"{option} {hide_password(url or '')!r}: {error}") from None


def check_settings(plan: DeploymentPlan) -> LauncherConfig:
    """Read the settings of every service as it will, and our own; the latter.

    Raises:
        ConfigError: one is wrong, or others could connect to the frontend without a key.
    """
    config = load_config(LauncherConfig, plan.environment)
    for child in plan.services:
        _check_service(child)
    return config


def check_machine(plan: DeploymentPlan, options: DeploymentOptions) -> None:
    """See that the ports that services are to listen on are free, and that there is room for every
    host's tiers.

    Raises:
        ConfigError: it is not so; names the option or setting.
    """
    check_port(options.host, options.port)
    if options.nats_port is not None:
        check_port("127.0.0.1", options.nats_port, "--nats-port")
    for child in plan.services:
        config = load_config(CONFIGS[child.service], child.environment)
        if config.metrics_port:
            check_port(config.metrics_address, config.metrics_port, "SYMPHONY_METRICS_PORT")
        if isinstance(config, KvstoreConfig):
            host, port = split_address(config.peer_listen)
            if config.peer_secret_file is not None and port:
                check_port(host, port, "SYMPHONY_PEER_LISTEN")
            decide_sizes(config)


def tenants_of(plan: DeploymentPlan) -> frozenset[TenantId]:
    """Who can have credentials: the tenants of the frontend's keys.

    Raises:
        ConfigError: the file of keys is wrong, or names one that a subject cannot.
    """
    return tenants_by(frontend_config(plan))


def frontend_config(plan: DeploymentPlan) -> FrontendConfig:
    """The settings that the frontend will read."""
    frontend = next(child for child in plan.services if child.service == "frontend")
    return load_config(FrontendConfig, frontend.environment)


def tenants_by(config: FrontendConfig) -> frozenset[TenantId]:
    """`tenants_of` a frontend's settings."""
    tenants = load_keyring(config).tenants
    for tenant in tenants:
        try:
            tenant_token(tenant)
        except ValueError as error:
            raise ConfigError(f"SYMPHONY_API_KEYS_FILE: {error}") from None
    return tenants


def check_nats(url: str, access: NatsAccess, patience_s: float = NATS_PATIENCE_S) -> bool:
    """See that the NATS that we were given is there; whether it asks who connects.

    Raises:
        ConfigError: no server answers within `patience_s`, or we are not let in.
    """

    async def ask() -> bool:
        bus = await Bus.connect(url, "cli", access, timeout_s=patience_s)
        try:
            return not bus.is_open
        finally:
            await bus.drain()

    try:
        return asyncio.run(ask())
    except PeerUnavailable as error:
        raise ConfigError(f"--nats-url: {error.message}") from None


def open_servers(options: DeploymentOptions, plan: DeploymentPlan) -> list[str]:
    """Of the servers that we were given, what to say of those that let anybody in."""
    warnings = []
    if options.nats_url is not None and not check_nats(options.nats_url, plan.nats_access):
        warnings.append(
            "--nats-url: this NATS lets anybody in: who can connect reads every prompt and speaks "
            "for every tenant"
        )
    if options.redis_url is not None and open_redis(options.redis_url, plan.redis_access):
        warnings.append(
            "--redis-url: this Redis lets anybody in: who can connect reads every session"
        )
    return warnings


def open_redis(url: str, access: RedisAccess) -> bool:
    """Whether a Redis is there and lets anybody in."""
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in SECRETS]
    netloc = parts.netloc.rpartition("@")[2]
    anonymous = parts._replace(netloc=netloc, query=urlencode(query)).geturl()
    return not asyncio.run(redis_trouble(anonymous, replace(access, password_file=None)))


def _check_service(child: ChildPlan) -> None:
    config = load_config(CONFIGS[child.service], child.environment)
    if isinstance(config, FrontendConfig):
        load_keyring(config)
