"""A candidate for the lease: it asks for it, keeps it, and knows whether it leads."""

from collections.abc import Callable
from functools import partial
from typing import Any

from loadtest.sim.timeline import MS, SECOND, Action, Timeline
from loadtest.world.alarm import Alarm
from loadtest.world.deployment import SimDeployment
from loadtest.world.process import Process
from shared.effects import WakeAt
from shared.errors import NobodyListens, SymphonyError
from shared.lease.core import effects as le
from shared.lease.core.core import LeaseCore
from shared.lease.core.times import LeaseTimes
from shared.wire.messages import Empty, LeaseHolder
from shared.wire.subjects import LEASE_HOLDER

TIMES = LeaseTimes(beat_ns=500 * MS, ttl_ns=2 * SECOND)
RESTART_NS = 300 * MS
QUEUE_MAX = 65_536


class Election:
    """The key of the leader's lease in NATS, under compare and set, and who wants it.

    Attributes:
        candidates: all there are, whether they live or not.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.candidates: list[Candidate] = []
        self.stored = le.Stored(None, 0)
        self._revision = 0
        self._leader_of: dict[int, str] = {}

    def write(self, write: le.WriteLease) -> int | None:
        """The new revision; None when the expected one is not there."""
        if write.expected_revision != self.stored.revision:
            return None
        self._revision += 1
        self.stored = le.Stored(write.lease, self._revision)
        return self._revision

    def check_leaders(self) -> None:
        """One at a time."""
        leaders = [candidate.name for candidate in self.candidates if candidate.is_leading]
        assert len(leaders) <= 1, f"{leaders} lead at once"

    def on_lead(self, name: str, fence: int) -> None:
        """No two processes ever lead under the same fence."""
        owner = self._leader_of.setdefault(fence, name)
        assert owner == name, f"{owner} and {name} both lead under {fence}"
        self._timeline.note(f"{name} leads")
        self.check_leaders()


class Candidate(Process):
    """Attributes:
    fence: of the term it leads.
    queue_max: events that wait in a queue of it now.
    num_dropped: events that found no room there, in all lives.
    """

    deployment: SimDeployment

    def __init__(
        self, deployment: SimDeployment, name: str, election: Election, leadership: str = "all"
    ) -> None:
        super().__init__(deployment, name)
        self._leadership = leadership
        self._election = election
        election.candidates.append(self)
        self.queue_max = QUEUE_MAX
        self.num_dropped = 0

    def on_start(self) -> None:
        self.fence = 0
        self._lease_alarm = Alarm(self, self._look_at_lease)
        self._question = 0
        self.lease = LeaseCore(
            instance=self.instance,
            times=TIMES,
            wall_offset_ms=(self.wall_ns - self.now_ns) // MS,
        )
        self._lead_on(self.lease.on_wake(self.now_ns))

    def on_disconnected(self) -> None:
        self._lead_on(self.lease.on_cut(self.now_ns))

    def on_lead(self) -> None:
        """It leads, or leads on, under `fence`."""
        raise NotImplementedError

    @property
    def instance(self) -> str:
        """Its name in this life."""
        return f"{self.name}.{self.life}"

    @property
    def is_leading(self) -> bool:
        """Whether it would act, if it looked now."""
        has_connection = self.deployment.wires.has_connection(self)
        return self.is_ready and has_connection and self.lease.is_leading(self.now_ns)

    def raise_fence(self, above: int) -> None:
        """A worker has seen a higher fence."""
        self._lead_on(self.lease.raise_fence(above, self.now_ns))

    def hear_lease(self, stored: le.Stored) -> None:
        """Another candidate says what the store took."""
        self._lead_on(self.lease.on_announced(stored, self.now_ns))

    def _lead_on(self, effects: list[le.LeaseEffect]) -> None:
        for effect in effects:
            match effect:
                case le.ReadLease() | le.WriteLease():
                    self._ask_store(effect)
                case le.AskHolder():
                    self._ask_holder()
                case le.Announce(stored):
                    for other in self._election.candidates:
                        if other is not self and other.is_ready:
                            self.deployment.wires.tell(
                                self, other, partial(other.hear_lease, stored)
                            )
                case WakeAt(at_ns):
                    self._lease_alarm.set(at_ns)
                case le.Lead(fence):
                    self.fence = fence
                    self._election.on_lead(self.instance, fence)
                    self.on_lead()
                case le.Lost() | le.Released():
                    self.end(RESTART_NS)
                    return
                case le.Suspend():
                    pass
                case le.Resume():
                    self._election.check_leaders()

    def _look_at_lease(self) -> bool:
        self._lead_on(self.lease.on_wake(self.now_ns))
        return True

    def _ask_store(self, question: le.ReadLease | le.WriteLease) -> None:
        self._question += 1
        number = self._question

        def answer(event: Callable[[int], list[le.LeaseEffect]]) -> None:
            if number == self._question:
                self._question += 1
                self._lead_on(event(self.now_ns))

        def at_store() -> Action | None:
            event: Callable[[int], list[le.LeaseEffect]]
            if isinstance(question, le.ReadLease):
                event = partial(self.lease.on_read, self._election.stored)
            else:
                revision = self._election.write(question)
                event = self.lease.on_conflict
                if revision is not None:
                    event = partial(self.lease.on_written, revision)
            return lambda: answer(event)

        self.deployment.wires.ask_server(self, at_store)
        self.later(TIMES.beat_ns, lambda: answer(self.lease.on_no_answer))

    def _ask_holder(self) -> None:
        def on_reply(holder: Any) -> None:
            self._lead_on(self.lease.on_holder(holder.instance, self.now_ns))

        def on_error(error: SymphonyError) -> None:
            if isinstance(error, NobodyListens):
                self._lead_on(self.lease.on_holder(None, self.now_ns))
            else:
                self._lead_on(self.lease.on_holder_silent(self.now_ns))

        self.deployment.wires.request(
            self, LEASE_HOLDER, Empty(), on_reply, on_error,
            ident=self._leadership, timeout_ns=TIMES.answer_ns,
        )  # fmt: skip

    def _be_present(self) -> None:
        """Answer spares, in this life, that it is there."""
        self.deployment.wires.listen(
            self,
            LEASE_HOLDER,
            lambda _, reply: reply(LeaseHolder(instance=self.instance)),
            ident=self._leadership,
        )
