"""A process of the deployment: it starts, stands still, dies, and has clocks of its own."""

from collections import deque
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from loadtest.sim.network import PENDING_BYTES_MAX
from loadtest.sim.timeline import SECOND, Action, Timeline
from loadtest.sim.wires import Wires

DRIFT_MAX_PPM = 200


class Ground(Protocol):
    """What processes stand on."""

    @property
    def timeline(self) -> Timeline: ...
    @property
    def random(self) -> Random: ...
    @property
    def wires(self) -> Wires: ...


@dataclass(frozen=True, slots=True)
class PlainGround:
    """That, and nothing else."""

    timeline: Timeline
    random: Random
    wires: Wires


class Process:
    """Base of every process. What it does happens in `run`, now or after the thaw, never after its
    death.

    Attributes:
        is_ready: it has connected for the first time in this life, and begun.
        life: counts starts; what was asked for in an earlier life never happens.
        is_gone: it died for good, with its machine.
        is_touched: something happened to a core of it since it was checked.
    """

    def __init__(self, deployment: Ground, name: str) -> None:
        self.deployment = deployment
        self.name = name
        self._timeline = deployment.timeline
        self.is_up = False
        self.is_ready = False
        self.life = 0
        self.is_gone = False
        self.is_touched = False
        self._frozen_until_ns = 0
        self._backlog: deque[tuple[int, Action]] = deque()
        random = deployment.random
        self._offset_ns = random.randrange(1000 * SECOND)
        self._drift_ppm = random.randint(-DRIFT_MAX_PPM, DRIFT_MAX_PPM)
        self.wall_skew_ns = 0
        self.pending_bytes_max = PENDING_BYTES_MAX

    @property
    def now_ns(self) -> int:
        """Its monotonic clock."""
        now_ns = self._timeline.now_ns
        return self._offset_ns + now_ns + now_ns * self._drift_ppm // 1_000_000

    @property
    def wall_ns(self) -> int:
        """Its wall clock, which may be wrong and may jump."""
        return 1_800_000_000 * SECOND + self._timeline.now_ns + self.wall_skew_ns

    @property
    def is_frozen(self) -> bool:
        return self._timeline.now_ns < self._frozen_until_ns

    @property
    def is_well(self) -> bool:
        """Up, running and connected."""
        return self.is_ready and not self.is_frozen and self.deployment.wires.is_connected(self)

    def start(self) -> None:
        """Begin a life, unless there is no machine for it any more."""
        if self.is_gone:
            return
        assert not self.is_up
        self.is_up = True
        self.life += 1
        self._frozen_until_ns = 0
        self._backlog.clear()
        self._timeline.note(f"{self.name} starts")
        self.is_ready = False
        self.deployment.wires.join(self, self._begin)

    def crash(self) -> None:
        """Die at once. What is under way arrives."""
        if not self.is_up:
            return
        was_ready, self.is_up, self.is_ready = self.is_ready, False, False
        self._timeline.note(f"{self.name} dies")
        self.deployment.wires.leave(self)
        if was_ready:
            self.on_crash()

    def end(self, restart_ns: int) -> None:
        """Die by one's own decision; the supervisor starts it again."""
        self.crash()
        self._timeline.after(restart_ns, self.start)

    def freeze(self, duration_ns: int) -> None:
        """Stand still, as a process without a CPU does."""
        if not self.is_up:
            return
        self.deployment.wires.note_disturbed(self, duration_ns)
        until_ns = self._timeline.now_ns + duration_ns
        self._frozen_until_ns = max(self._frozen_until_ns, until_ns)
        self._timeline.after(duration_ns, self._thaw)

    def later(self, delay_ns: int, action: Action) -> None:
        """Do it in `delay_ns`, in this life."""
        self._timeline.after(delay_ns, partial(self.run, self.life, action))

    def run(self, life: int, action: Action) -> None:
        """Do it now or after the thaw, if this life still lasts."""
        if not self.is_up or life != self.life:
            return
        if self._backlog or self._timeline.now_ns < self._frozen_until_ns:
            self._backlog.append((life, action))
            return
        action()
        if self.is_touched and self.is_ready:
            self.is_touched = False
            self.check()

    def on_start(self) -> None:
        """A life begins."""
        raise NotImplementedError

    def check(self) -> None:
        """What must hold of it whenever something has happened to it.

        Raises:
            AssertionError: it does not.
        """

    def on_crash(self) -> None:
        """A life ended."""

    def on_disconnected(self) -> None:
        """The connection to NATS broke."""

    def on_reconnected(self) -> None:
        """The connection to NATS is back."""

    def _begin(self) -> None:
        self.is_ready = True
        self.on_start()

    def _thaw(self) -> None:
        while self.is_up and self._backlog and not self.is_frozen:
            life, action = self._backlog.popleft()
            if life == self.life:
                action()
                if self.is_touched and self.is_ready:
                    self.is_touched = False
                    self.check()
