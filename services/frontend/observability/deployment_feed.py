"""The dashboard's view of the deployment, polled once for all viewers, and its last ten minutes."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from nats.errors import Error as NatsError

from services.frontend.core.limits.capacity import TooManyRequests
from services.frontend.core.observability.deployment_history import STEP_S, DeploymentHistory
from services.frontend.core.observability.deployment_view import Answers, DeploymentView
from services.frontend.observability.deployment_metrics import DeploymentMetrics, Poll
from shared.bus import Bus
from shared.ids import TenantId
from shared.runtime.clock import Clock
from shared.wire.messages import Empty
from shared.wire.subjects import KV_STATS, SCHEDULER_STATUS, SERVICE_STATUS

log = logging.getLogger(__name__)

PERIOD_S = 2.0
VIEWERS_MAX = 256
VIEWERS_OF_TENANT = 16
STALE_NS = 1_000_000_000  # a view is good for so long


class DeploymentFeed:
    """Polls all processes: every other second while there are viewers, else once a history step."""

    def __init__(self, bus: Bus, clock: Clock, metrics: DeploymentMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._services = Poll(bus, SERVICE_STATUS, Empty(), lambda reply: reply.process)
        self._schedulers = Poll(bus, SCHEDULER_STATUS, Empty(), lambda reply: reply.process)
        self._stores = Poll(bus, KV_STATS, Empty(), lambda reply: reply.host_id)
        self._view = DeploymentView()
        self._history = DeploymentHistory()
        self._latest: tuple[int, dict[str, Any]] | None = None
        self._looking = asyncio.Lock()
        self._viewers: dict[asyncio.Event, TenantId] = {}
        self._is_stopped = False

    async def look(self) -> dict[str, Any]:
        """The view now, or as it was a moment ago."""
        async with self._looking:
            if self._latest is not None and self._clock.now_ns() - self._latest[0] < STALE_NS:
                return self._latest[1]
            services, schedulers, stores, samples = await asyncio.gather(
                self._services.take(),
                self._schedulers.take(),
                self._stores.take(),
                self._metrics.samples(),
            )
            answers = Answers(services, list(schedulers.values()), list(stores.values()), samples)
            now_ns, wall_s = self._clock.now_ns(), self._clock.wall_ns() / 1e9
            view = self._view.on_answers(answers, now_ns, wall_s)
            self._latest = now_ns, view
            self._history.on_view(view)
            return view

    async def run(self) -> None:
        """Keep the history, with and without viewers."""
        while not self._is_stopped:
            await asyncio.sleep(STEP_S)
            try:
                await self.look()
            except (NatsError, ValueError) as error:  # NATS is away, or an answer malformed
                log.warning("no view of the deployment", extra={"error": str(error)})

    def history(self) -> dict[str, Any]:
        """What charts show of the last ten minutes."""
        return self._history.columns(self._clock.wall_ns() / 1e9)

    def stop(self) -> None:
        """End all viewers' streams: the service ends."""
        self._is_stopped = True
        for viewer in self._viewers:
            viewer.set()

    async def views(
        self, is_gone: asyncio.Event, tenant: TenantId
    ) -> AsyncIterator[dict[str, Any]]:
        """One view after the other, until their viewer is gone.

        Args:
            is_gone: set when the viewer is gone.

        Raises:
            TooManyRequests: too many look, or too many of this tenant.
        """
        of_tenant = sum(each == tenant for each in self._viewers.values())
        if len(self._viewers) >= VIEWERS_MAX or of_tenant >= VIEWERS_OF_TENANT:
            raise TooManyRequests(f"{of_tenant} watch already")
        self._viewers[is_gone] = tenant
        try:
            while not (is_gone.is_set() or self._is_stopped):
                yield await self.look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_gone.wait(), PERIOD_S)
        finally:
            del self._viewers[is_gone]
