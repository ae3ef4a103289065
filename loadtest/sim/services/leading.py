"""Instances of a service of which one leads and does nothing else: for what the lease decides."""

from random import Random

from loadtest.sim.client import Store
from loadtest.sim.process import PlainGround
from loadtest.sim.services.scheduler import Candidate, Leadership
from loadtest.sim.timeline import MS, Timeline
from loadtest.sim.wires import Wires
from shared.lease.lease import Lease
from shared.lease.settings import LeaseConfig
from shared.service import Runtime

BEAT_MS, TTL_MS = 250, 2000
LOOK_NS = 5 * MS


async def lead(runtime: Runtime, config: LeaseConfig) -> None:
    """As `services.tracker.service.main` does, with nothing to do while it leads."""
    lease = Lease(runtime, config, on_lost=lambda: runtime.fail("another one leads"))
    if await lease.lead_or_stop():
        await runtime.ready()
        await runtime.stopping.wait()
    await lease.release()


class Instance(Candidate):
    """One of them."""

    kind = "instance"
    main = staticmethod(lead)

    def config(self) -> LeaseConfig:
        return LeaseConfig(
            instance=self.name, scheduler_lease_beat_ms=BEAT_MS, scheduler_lease_ttl_ms=TTL_MS
        )


class Instances:
    """Instances that start in the first instants, on a network that is as good as it gets.

    Attributes:
        takeovers: when another one began to lead, and which.
    """

    def __init__(self, seed: int, num: int) -> None:
        self.random = Random(f"instances {seed}")
        self.timeline = Timeline()
        self.wires = Wires(self.timeline, self.random)
        self.store, self.leadership = Store(), Leadership()
        ground = PlainGround(self.timeline, self.random, self.wires)
        self.all = [
            Instance(ground, f"instance-{number}", self.store, self.leadership)
            for number in range(num)
        ]
        self.takeovers: list[tuple[int, Candidate]] = []
        for instance in self.all:
            self.timeline.after(self.random.randrange(100 * MS), instance.start)
        self._look()

    @property
    def leader(self) -> Candidate | None:
        """The one that would act now; None: no one would.

        Raises:
            AssertionError: several would.
        """
        self.leadership.check()
        return next(iter(self.leadership.leaders), None)

    def run(self, duration_ns: int) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ns + duration_ns, 1_000_000)

    def dispose(self) -> None:
        """Close what still waits."""
        for instance in self.all:
            instance.dispose()

    def _look(self) -> None:
        """Note who leads, again and again."""
        leader = self.leader
        last = self.takeovers[-1][1] if self.takeovers else None
        if leader is not None and leader is not last:
            self.takeovers.append((self.timeline.now_ns, leader))
        self.timeline.after(LOOK_NS, self._look)
