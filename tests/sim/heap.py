"""Virtual time: one heap of events, and a network that delays, loses, doubles and reorders."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

Action = Callable[[], None]

MS = 1_000_000
SECOND = 1_000 * MS


class World:
    """Everything that happens in a simulation, in order of its virtual time.

    Attributes:
        random: the only source of chance; a seed gives the same run again.
        now_ns: virtual time.
        trace: what happened, one line an event worth telling.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ns = 0
        self.trace: list[str] = []
        self._heap: list[tuple[int, int, Action]] = []
        self._num_events = 0

    def after(self, delay_ns: int, action: Action) -> None:
        """Run `action` once `delay_ns` have passed."""
        assert delay_ns >= 0
        self._num_events += 1
        heappush(self._heap, (self.now_ns + delay_ns, self._num_events, action))

    def run_until(self, end_ns: int) -> None:
        """Let time pass up to `end_ns`."""
        while self._heap and self._heap[0][0] <= end_ns:
            self.now_ns, _, action = heappop(self._heap)
            action()
        self.now_ns = end_ns

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now_ns / MS:10.3f} {text}")


class Network:
    """Delivers messages between the parts of a simulation, badly until `heal`.

    Args:
        loss: probability that a message never arrives.
        duplication: probability that it arrives twice.
        delay_max_ns: each delivery takes a random time up to this; a few take ten times as long,
            so messages overtake one another.
    """

    def __init__(
        self,
        world: World,
        *,
        loss: float = 0.05,
        duplication: float = 0.05,
        delay_max_ns: int = 20 * MS,
    ) -> None:
        self._world = world
        self._loss = loss
        self._duplication = duplication
        self._delay_max_ns = delay_max_ns

    def send(self, deliver: Action) -> None:
        """Deliver once, or twice, or not at all."""
        random = self._world.random
        if random.random() < self._loss:
            return
        for _ in range(2 if random.random() < self._duplication else 1):
            slow = 10 if random.random() < 0.02 else 1
            self._world.after(random.randrange(self._delay_max_ns * slow), deliver)

    def heal(self) -> None:
        """From now on everything arrives once."""
        self._loss = self._duplication = 0.0
