"""Responses that this frontend makes in the background, with a heartbeat in Redis."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

from services.frontend.core.sessions.stored_responses import BEAT_S
from services.frontend.sessions.response_store import ResponseStore
from services.frontend.sessions.store import StoreAway
from shared.ids import TenantId
from shared.runtime.tasks import Tasks

FAREWELL_S = 2.0  # at the end, to store how unfinished ones ended


class BackgroundRuns:
    """Responses that are made here in the background, by tenant and id."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._tasks = Tasks("making a response in the background failed")
        self._running: dict[tuple[TenantId, str], Callable[[], None]] = {}

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run one."""
        self._tasks.spawn(work)

    @contextmanager
    def running(
        self, tenant: TenantId, response_id: str, abandon: Callable[[], None]
    ) -> Iterator[None]:
        """Send its heartbeat while this context lasts.

        Args:
            abandon: called when it was cancelled or deleted.
        """
        self._running[tenant, response_id] = abandon
        try:
            yield
        finally:
            del self._running[tenant, response_id]

    def abandon(self, tenant: TenantId, response_id: str) -> None:
        """End one that was cancelled or deleted. One of another frontend ends with that one's next
        heartbeat.
        """
        if (abandon := self._running.get((tenant, response_id))) is not None:
            abandon()

    async def run(self) -> None:
        """Send the heartbeat of each, and end those that were cancelled or deleted, for ever."""
        while True:
            await asyncio.sleep(BEAT_S)
            for tenant, response_id in list(self._running):
                try:
                    is_wanted = await self._store.say(tenant, response_id)
                except StoreAway:
                    break  # it may be back the next time
                if not is_wanted:
                    self.abandon(tenant, response_id)

    async def idle(self, timeout_s: float) -> None:
        """Wait until all are done, for so long at most."""
        await self._tasks.wait(timeout_s)

    async def stop(self) -> None:
        """Their turns were ended: let that be stored."""
        if not await self._tasks.wait(FAREWELL_S):
            self._tasks.cancel()
