"""A few slots for the work of many tenants: none takes all, and none waits behind another's queue.

`FairSlots` decides. `FairGate` waits, on the event loop.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from shared.errors import NoCapacity, TenantQuota
from shared.ids import TenantId
from shared.tenant_queues import TenantQueues


class Overloaded(NoCapacity):
    """As much work waits as may, or it waited as long as it may."""

    code = "overloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class FairLimits:
    """Attributes:
    num: slots.
    of_tenant: slots of one tenant.
    waiting: pieces of work without a slot, of all tenants.
    waiting_of_tenant: of one tenant.
    """

    num: int
    of_tenant: int
    waiting: int = 0
    waiting_of_tenant: int = 0


class FairSlots:
    """Slots of each tenant, and which waiting ticket gets the next one: see `TenantQueues`.

    Args:
        what: the work is called in errors, plural.
    """

    def __init__(self, what: str, limits: FairLimits) -> None:
        self._what = what
        self._limits = limits
        self._running: Counter[TenantId] = Counter()
        self._waiting: TenantQueues[int] = TenantQueues()

    def ask(self, tenant: TenantId, ticket: int) -> bool:
        """Whether a slot is there at once; else `ticket` waits for one.

        Raises:
            TenantQuota: as much of this tenant's runs and waits as may.
            Overloaded: of all tenants'.
        """
        limits, num_own = self._limits, self._waiting.counts().get(tenant, 0)
        is_free = self._running.total() < limits.num and self._running[tenant] < limits.of_tenant
        if is_free and not num_own:
            self._running[tenant] += 1
            self._waiting.on_served(tenant)
            return True
        num = limits.of_tenant + limits.waiting_of_tenant
        if self._running[tenant] + num_own >= num:
            raise TenantQuota(f"this tenant has too many {self._what} at once: it may have {num}")
        if len(self._waiting) >= limits.waiting or num_own >= limits.waiting_of_tenant:
            raise Overloaded(f"too many {self._what} at once")
        self._waiting.put(tenant, ticket)
        return False

    def leave(self, tenant: TenantId, ticket: int) -> None:
        """`ticket` does not wait any more."""
        self._waiting.remove(tenant, ticket)

    def give(self, tenant: TenantId) -> list[int]:
        """A slot of `tenant` is free again: the tickets that have one now."""
        self._running[tenant] -= 1
        assert self._running[tenant] >= 0, "more given back than was taken"
        if not self._running[tenant]:
            del self._running[tenant]
        served: list[int] = []
        while self._running.total() < self._limits.num:
            taken = self._waiting.take(self._running, self._limits.of_tenant)
            if taken is None:
                break
            first, next_ticket = taken
            self._running[first] += 1
            served.append(next_ticket)
        return served


class FairGate:
    """Slots that are waited for.

    Args:
        what: the work is called in errors, plural.
    """

    def __init__(self, what: str, limits: FairLimits) -> None:
        self._what = what
        self._slots = FairSlots(what, limits)
        self._tickets = count()
        self._waiters: dict[int, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def slot(self, tenant: TenantId, wait_s: float) -> AsyncIterator[None]:
        """Work in this block has a slot.

        Args:
            wait_s: how long it waits for that at most.

        Raises:
            TenantQuota, Overloaded: it gets none.
        """
        ticket = next(self._tickets)
        if not self._slots.ask(tenant, ticket):
            await self._wait(tenant, ticket, wait_s)
        try:
            yield
        finally:
            self._give(tenant)

    async def _wait(self, tenant: TenantId, ticket: int, wait_s: float) -> None:
        waiter = self._waiters[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(wait_s):
                await asyncio.shield(waiter)
        except BaseException as error:
            if waiter.done():  # the slot came in the last moment
                self._give(tenant)
            else:
                self._slots.leave(tenant, ticket)
            if isinstance(error, TimeoutError):
                raise Overloaded(f"too many {self._what} at once") from None
            raise
        finally:
            del self._waiters[ticket]

    def _give(self, tenant: TenantId) -> None:
        for ticket in self._slots.give(tenant):
            self._waiters[ticket].set_result(None)
