"""Whether this scheduler process leads or is a spare: its lease and its consequences."""

import asyncio
import logging
from collections.abc import Callable

from services.scheduler.config import SchedulerConfig
from shared.errors import PeerUnavailable
from shared.lease.lease import Lease
from shared.service import Runtime
from shared.wire.messages import LeaderChanged
from shared.wire.subjects import LEADER_CHANGED

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.01


class Leadership:
    """Wraps the lease: waits for it, gates dispatches, announces a new term. Losing it ends the
    process, which restarts as a spare.
    """

    def __init__(self, runtime: Runtime, config: SchedulerConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._followers: list[Callable[[int], None]] = []
        self._lease = Lease(
            runtime,
            config,
            key=config.shard_name,
            on_fence=self._on_fence,
            on_lost=lambda: runtime.fail("another scheduler leads: leaving"),
        )

    @property
    def fence(self) -> int:
        """The fencing token of this term."""
        return self._lease.fence

    def on_fence(self, follower: Callable[[int], None]) -> None:
        """Call `follower` with the new fencing token when it is raised."""
        self._followers.append(follower)

    async def take(self) -> bool:
        """Wait until this process leads; False if it is stopped before."""
        return await self._lease.lead_or_stop()

    async def may_act(self) -> None:
        """Wait until this process may dispatch: immediately while it leads.

        While the lease cannot be renewed nothing may be sent. The lease's state depends on the
        clock as well as on events, so it is polled.
        """
        while not self._lease.is_leading:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN_S)

    def raise_fence(self, above: int) -> None:
        """A worker has seen a higher fencing token than this one."""
        self._lease.raise_fence(above)

    async def announce(self) -> None:
        """Announce the leader to workers and frontends, which answer with their state."""
        changed = LeaderChanged(
            instance=self._lease.instance, fence=self.fence, leadership=self._config.shard_name
        )
        try:
            await self._runtime.bus.publish(LEADER_CHANGED, changed)
        except PeerUnavailable as error:  # reports and submits repeat anyway
            log.warning("term not announced", extra={"error": error.message})

    async def leave(self) -> None:
        """Release the lease so that a spare can lead."""
        await self._lease.release()

    def _on_fence(self, fence: int) -> None:
        for follower in self._followers:
            follower(fence)
        self._runtime.spawn(self.announce(), "announce fence")
