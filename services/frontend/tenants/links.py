"""Connections on which tenants' requests come over NATS, apart from the services' own.

A tenant that sends more than is taken from it fills its own connection. It holds up neither
messages between services nor another tenant's requests.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from services.frontend.config import FrontendConfig
from services.frontend.tenants.auth import Keyring
from shared.bus import Bus
from shared.bus.paced import Pace
from shared.ids import TenantId
from shared.service import Runtime

LINKS_MAX = 64  # of more tenants some share one
PACE = Pace(messages_per_s=1000, bytes_per_s=32_000_000)
PREPARED_AT_ONCE = 16

Connect = Callable[[str], Awaitable[Bus]]
"""Opens a connection of this name to NATS, on which no more is taken than `PACE`."""


@dataclass(slots=True)
class Link:
    """A connection for requests of some tenants.

    Attributes:
        tenants: by their own subjects; None: any client that can connect.
        preparing: taken while a request is read and made ready, which takes the event loop's time.
        num_open: requests that are being answered.
    """

    bus: Bus
    tenants: list[TenantId | None]
    preparing: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(PREPARED_AT_ONCE)
    )
    num_open: int = 0

    @property
    def is_public(self) -> bool:
        """Whether requests may come on it without a tenant's name in their subject."""
        return None in self.tenants


async def connect_links(
    runtime: Runtime, config: FrontendConfig, keyring: Keyring, connect: Connect
) -> list[Link]:
    """One for each tenant that has a key, if NATS has an account for each tenant; else one for all.
    They are closed with the runtime.
    """
    groups: list[list[TenantId | None]] = [[None]]
    if not (runtime.bus.is_open or keyring.is_open):
        tenants = sorted(keyring.tenants)
        groups = [[*tenants[at::LINKS_MAX]] for at in range(min(LINKS_MAX, len(tenants)))]

    async def connected(number: int, group: list[TenantId | None]) -> Link:
        bus = await connect(f"frontend-{config.instance}-public-{number}")
        runtime.stack.push_async_callback(bus.drain)
        return Link(bus, group)

    return [*await asyncio.gather(*(connected(*each) for each in enumerate(groups)))]
