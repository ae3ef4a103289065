"""What can be known to be wrong before the first process starts."""

import asyncio

from cli.config import LauncherConfig
from cli.plan import ChildPlan, HouseOptions, HousePlan
from services.frontend.auth import load_keyring
from services.frontend.config import FrontendConfig
from services.kvstore.config import KvstoreConfig
from services.scheduler.config import SchedulerConfig
from services.tracker.config import TrackerConfig
from services.worker.config import WorkerConfig
from shared.bus import Bus
from shared.config import ServiceConfig, load_config
from shared.errors import ConfigError, PeerUnavailable
from shared.urls import check_nats_url, check_redis_url, hide_password

NATS_PATIENCE_S = 10.0
CONFIGS: dict[str, type[ServiceConfig]] = {
    "frontend": FrontendConfig,
    "kvstore": KvstoreConfig,
    "scheduler": SchedulerConfig,
    "tracker": TrackerConfig,
    "worker": WorkerConfig,
}


def check_addresses(options: HouseOptions) -> None:
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


def check_settings(plan: HousePlan) -> LauncherConfig:
    """Read the settings of every service as it will, and our own; the latter.

    Raises:
        ConfigError: one is wrong, or others could connect to the frontend without a key.
    """
    config = load_config(LauncherConfig, plan.environment)
    for child in plan.services:
        _check_service(child)
    return config


def check_nats(url: str, patience_s: float = NATS_PATIENCE_S) -> None:
    """See that the NATS that we were given is there.

    Raises:
        ConfigError: nobody answers within `patience_s`.
    """

    async def ask() -> None:
        bus = await Bus.connect(url, "cli", timeout_s=patience_s)
        await bus.drain()

    try:
        asyncio.run(ask())
    except PeerUnavailable as error:
        raise ConfigError(f"--nats-url: {error.message}") from None


def _check_service(child: ChildPlan) -> None:
    config = load_config(CONFIGS[child.service], child.environment)
    if isinstance(config, FrontendConfig):
        load_keyring(config)
