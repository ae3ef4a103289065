"""Whether this scheduler process leads or is a spare: its lease, and what follows from it."""

import asyncio
import logging
from collections.abc import Callable

from services.scheduler.config import SchedulerConfig
from shared.errors import PeerUnavailable
from shared.lease.lease import Lease
from shared.messages import LeaderChanged
from shared.service import Runtime
from shared.subjects import LEADER_CHANGED

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.01


class Leadership:
    """Wraps the lease: waits for it, says when this process may act, tells everyone of a new term.
    Losing it ends the process; started again, it is a spare.
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
        """Wait until this process leads; False if it is told to stop before."""
        return await self._lease.lead_or_stop()

    async def may_act(self) -> None:
        """Return while this process leads; before anything is dispatched.

        While the lease cannot be renewed nothing may be sent. Whether that is over is a matter of
        the clock as much as of an event, so it is looked at again and again.
        """
        while not self._lease.is_leading:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN_S)

    def raise_fence(self, above: int) -> None:
        """Somebody has seen a higher fencing token than ours."""
        self._lease.raise_fence(above)

    async def announce(self) -> None:
        """Tell workers and frontends who leads: they answer with what they have."""
        changed = LeaderChanged(
            instance=self._lease.instance, fence=self.fence, leadership=self._config.shard_name
        )
        try:
            await self._runtime.bus.publish(LEADER_CHANGED, changed)
        except PeerUnavailable as error:  # reports and submits repeat anyway
            log.warning("term not announced", extra={"error": error.message})

    async def leave(self) -> None:
        """Let a spare lead."""
        await self._lease.release()

    def _on_fence(self, fence: int) -> None:
        for follower in self._followers:
            follower(fence)
        self._runtime.spawn(self.announce(), "announce fence")
