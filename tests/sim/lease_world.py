"""Candidates for the lease in virtual time: a store that fails and forgets, clocks that disagree,
processes that stand still, and a worker that refuses old fences.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from shared.effects import WakeAt
from shared.lease.core.core import LeaseCore
from shared.lease.core.effects import (
    Announce,
    AskHolder,
    Lead,
    LeaseEffect,
    Lost,
    ReadLease,
    Released,
    Resume,
    Stored,
    Suspend,
    WriteLease,
)
from shared.lease.core.times import LeaseTimes
from tests.sim.heap import MS, SECOND, Action, Network, World

TIMES = LeaseTimes(beat_ns=250 * MS, ttl_ns=2 * SECOND)
ANSWER_WITHIN_NS = TIMES.beat_ns
WALL_START_MS = 1_800_000_000_000
WALL_SKEW_MAX_MS = 5_000
DRIFT_MAX_PPM = 200


class Store:
    """One key under compare and set. While it is down nothing reaches it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_up = True
        self.stored = Stored(None, 0)
        self._revision = WALL_START_MS

    def forget(self) -> None:
        """Begin anew, with revisions from the wall clock as `shared.bucket` makes them."""
        self._world.note("store forgets")
        self.stored = Stored(None, 0)
        self._revision = WALL_START_MS + self._world.now_ns // MS

    def write(self, write: WriteLease) -> int | None:
        """The new revision; None when the expected one is not there."""
        if write.expected_revision != self.stored.revision:
            return None
        self._revision += 1
        self.stored = Stored(write.lease, self._revision)
        return self._revision


class Worker:
    """Takes batches; refuses fences below the highest it saw, and tells their senders."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.highest_fence = 0
        self.sender_of: dict[int, str] = {}
        self.last_taken_at_ns = 0

    def take(self, sender: "Process", fence: int, network: Network) -> None:
        """A batch arrives."""
        if fence < self.highest_fence:
            network.send(partial(sender.deliver, partial(sender.raise_fence, self.highest_fence)))
            return
        self.highest_fence = fence
        self.last_taken_at_ns = self._world.now_ns
        owner = self.sender_of.setdefault(fence, sender.name)
        assert owner == sender.name, f"{owner} and {sender.name} both sent under {fence}"


class Process:
    """One candidate with clocks of its own. While it is frozen, everything waits for its thaw."""

    def __init__(self, house: "House", name: str) -> None:
        random = house.world.random
        self.house = house
        self.name = name
        self.is_dead = False
        self.is_connected = True
        self.is_over = False
        self.fences: list[int] = []
        self._offset_ns = random.randrange(1000 * SECOND)
        self._rate = 1 + random.uniform(-DRIFT_MAX_PPM, DRIFT_MAX_PPM) / 1e6
        self._frozen_until_ns = 0
        self._backlog: deque[Action] = deque()
        self._alarm = 0
        self._question = 0
        skew_ms = random.randrange(-WALL_SKEW_MAX_MS, WALL_SKEW_MAX_MS)
        wall_ms = WALL_START_MS + house.world.now_ns // MS + skew_ms
        self.core = LeaseCore(
            instance=name, times=TIMES, wall_offset_ms=wall_ms - self.now_ns // MS
        )
        self.deliver(lambda: self.core.on_wake(self.now_ns))

    @property
    def now_ns(self) -> int:
        """The process's own monotonic clock."""
        return self._offset_ns + int(self.house.world.now_ns * self._rate)

    @property
    def is_leading(self) -> bool:
        """Whether it would act, if it looked now, and be heard."""
        return self.is_connected and self.core.is_leading(self.now_ns)

    def freeze(self, duration_ns: int) -> None:
        """Stop, as a process without a CPU does."""
        world = self.house.world
        world.note(f"{self.name} freezes for {duration_ns / MS:.0f} ms")
        until_ns = world.now_ns + duration_ns
        self._frozen_until_ns = max(self._frozen_until_ns, until_ns)
        world.after(duration_ns, self._thaw)

    def die(self) -> None:
        """Never act again; what is under way arrives."""
        self.house.world.note(f"{self.name} dies")
        self.is_dead = True
        self.is_connected = False

    def cut(self, duration_ns: int) -> None:
        """Lose the connection to the bus; a frozen process learns of that when it thaws."""
        if not self.is_connected:
            return
        world = self.house.world
        world.note(f"{self.name} cut off for {duration_ns / MS:.0f} ms")
        self.is_connected = False
        self.deliver(lambda: self.core.on_cut(self.now_ns))

        def connect() -> None:
            self.is_connected = True

        world.after(duration_ns, lambda: self.run(connect))

    def deliver(self, event: Callable[[], list[LeaseEffect]]) -> None:
        """Tell the core, now or after the thaw."""
        self.run(lambda: self._perform(event()))

    def hear(self, event: Callable[[], list[LeaseEffect]]) -> None:
        """Tell the core what came over the bus: nothing does while the connection is gone."""
        if self.is_connected:
            self.deliver(event)

    def send(self, message: Action) -> None:
        """What is sent without a connection is lost."""
        if self.is_connected:
            self.house.network.send(message)

    def raise_fence(self, above: int) -> list[LeaseEffect]:
        """The worker refused a batch."""
        return self.core.raise_fence(above, self.now_ns)

    def dispatch(self) -> None:
        """Look whether it leads, and only then, perhaps much later, send a batch."""

        def look() -> None:
            if not self.is_leading:
                return
            fence, random = self.fences[-1], self.house.world.random
            delay_ns = 5 * SECOND if random.random() < 0.05 else 2 * MS
            network = self.house.network
            take = partial(self.house.worker.take, self, fence, network)
            self.house.world.after(random.randrange(delay_ns), lambda: self.send(take))

        self.run(look)

    def run(self, action: Action) -> None:
        """Do it now or after the thaw, unless dead."""
        if self.is_dead:
            return
        if self.house.world.now_ns < self._frozen_until_ns:
            self._backlog.append(action)
        else:
            action()
            self.house.check()

    def _thaw(self) -> None:
        while self._backlog and self.house.world.now_ns >= self._frozen_until_ns:
            self.run(self._backlog.popleft())

    def _perform(self, effects: list[LeaseEffect]) -> None:
        house = self.house
        for effect in effects:
            match effect:
                case ReadLease() | WriteLease():
                    self._ask(effect)
                case AskHolder():
                    self._ask_holder()
                case Announce(stored):
                    for other in house.processes:
                        if other is not self:
                            hear = partial(_hear, other, stored)
                            self.send(partial(other.hear, hear))
                case WakeAt(at_ns):
                    self._set_alarm(at_ns)
                case Lead(fence):
                    self.fences.append(fence)
                    house.on_lead(self, fence)
                case Lost() | Released():
                    self.is_over = True
                    house.world.note(f"{self.name} {type(effect).__name__}")
                case Suspend() | Resume():
                    house.world.note(f"{self.name} {type(effect).__name__}")

    def _set_alarm(self, at_ns: int) -> None:
        self._alarm += 1
        number = self._alarm

        def ring() -> list[LeaseEffect]:
            return self.core.on_wake(self.now_ns) if number == self._alarm else []

        delay_ns = max(int((at_ns - self.now_ns) / self._rate) + 1, 0)
        self.house.world.after(delay_ns, lambda: self.deliver(ring))

    def _ask(self, question: ReadLease | WriteLease) -> None:
        """One request: it arrives or not, is answered or not, or too late."""
        self._question += 1
        number, house = self._question, self.house

        def answer(event: Callable[[int], list[LeaseEffect]]) -> list[LeaseEffect]:
            if number != self._question:
                return []  # doubled, or given up before
            self._question += 1
            return event(self.now_ns)

        def arrive() -> None:
            if not house.store.is_up:
                return
            event: Callable[[int], list[LeaseEffect]]
            if isinstance(question, ReadLease):
                event = partial(self.core.on_read, house.store.stored)
            else:
                revision = house.store.write(question)
                event = self.core.on_conflict
                if revision is not None:
                    event = partial(self.core.on_written, revision)
            house.network.send(lambda: self.hear(lambda: answer(event)))

        self.send(arrive)
        house.world.after(
            ANSWER_WITHIN_NS, lambda: self.deliver(lambda: answer(self.core.on_no_answer))
        )

    def _ask_holder(self) -> None:
        """The first of those who hold the lease answers; the bus does where nobody is connected."""
        house, is_answered = self.house, False

        def answer(event: Callable[[int], list[LeaseEffect]]) -> list[LeaseEffect]:
            nonlocal is_answered
            if is_answered:
                return []
            is_answered = True
            return event(self.now_ns)

        def tell(holder: str | None) -> None:
            event = partial(self.core.on_holder, holder)
            house.network.send(lambda: self.hear(lambda: answer(event)))

        def arrive() -> None:
            holders = [other for other in house.processes if other.fences and other.is_connected]
            if not holders:
                tell(None)
            for holder in holders:
                holder.run(partial(tell, holder.name))

        self.send(arrive)
        silent = self.core.on_holder_silent
        house.world.after(TIMES.answer_ns, lambda: self.deliver(lambda: answer(silent)))


def _hear(process: Process, stored: Stored) -> list[LeaseEffect]:
    return process.core.on_announced(stored, process.now_ns)


class House:
    """Candidates, one store, one worker, one network; checked after everything that happens."""

    def __init__(self, seed: int, *, loss: float = 0.03, delay_max_ns: int = 5 * MS) -> None:
        self.world = World(seed)
        self.network = Network(
            self.world, loss=loss, duplication=0.05 if loss else 0.0, delay_max_ns=delay_max_ns
        )
        self.store = Store(self.world)
        self.worker = Worker(self.world)
        self.processes: list[Process] = []
        self.leader_of: dict[int, str] = {}
        self.takeovers: list[int] = []  # instants at which another process began to lead

    @property
    def leaders(self) -> list[Process]:
        """Who would act now."""
        return [process for process in self.processes if process.is_leading]

    def join(self) -> None:
        """One more candidate."""
        self.processes.append(Process(self, f"p{len(self.processes)}"))

    def calm(self) -> None:
        """From now on messages arrive once, and soon."""
        self.network = Network(self.world, loss=0.0, duplication=0.0, delay_max_ns=2 * MS)

    def on_lead(self, process: Process, fence: int) -> None:
        """No fence is ever told to two processes, and a process's fences grow."""
        self.world.note(f"{process.name} leads under {fence}")
        assert fence not in self.leader_of, f"{self.leader_of[fence]} led under {fence} before"
        assert process.fences == sorted(process.fences)
        self.leader_of[fence] = process.name
        self.takeovers.append(self.world.now_ns)

    def check(self) -> None:
        """Never two at once, whatever their fences."""
        leaders = self.leaders
        assert len(leaders) <= 1, f"{[process.name for process in leaders]} lead at once"

    def dispatch_all(self, every_ns: int, until_ns: int) -> None:
        """Everybody tries to dispatch again and again."""
        for process in self.processes:
            process.dispatch()
        if self.world.now_ns < until_ns:
            self.world.after(every_ns, lambda: self.dispatch_all(every_ns, until_ns))
