"""Decides which child is stuck: alive, and not answering. No I/O: answers are arguments.

All children are asked at once, one round after another. Who has not answered for `stuck_after_ns`
of rounds is stuck. Silence is counted in rounds, not by the clock, and only in those that say
something about the child:

- a round that took much longer than it should does not count: the machine stood still, or the
process that
  asks did;
- a service is reached through NATS. While that does not pass messages on, services cannot
  answer, and their silence starts again when it does;
- a child is judged from when it was ready for the first time in its life: to load a model takes
  minutes in which nothing answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

STANDSTILL_NS = 2_000_000_000  # by which a round may be late
SILENT_ROUNDS_MIN = 2  # one answer may be late


@dataclass(frozen=True, slots=True)
class Answer:
    """A service's answer, from whatever deployment."""

    service: str
    instance: str
    pid: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What came in while everyone was asked once.

    Attributes:
        lasted_ns: until the next round.
        is_passed_on: NATS passed our question on.
        services: answers, also to earlier questions.
        servers: names of those of our own that answered.
    """

    lasted_ns: int
    is_passed_on: bool
    services: list[Answer]
    servers: list[str]


@dataclass(frozen=True, slots=True)
class Stuck:
    """Kill this child: it does not answer."""

    name: str
    silent_ns: int


@dataclass(slots=True)
class _Child:
    is_server: bool
    is_met: bool = False
    num_missed: int = 0
    is_stuck: bool = False


@dataclass(slots=True)
class Liveness:
    """Silence of the children, by name.

    Attributes:
        interval_ns: how long a round lasts.
        stuck_after_ns: of silence.
    """

    interval_ns: int
    stuck_after_ns: int
    _children: dict[str, _Child] = field(default_factory=dict)

    def on_started(self, name: str, *, is_server: bool) -> None:
        """A child begins a life. A server is asked directly, and not through NATS."""
        self._children[name] = _Child(is_server)

    def on_deployment_ready(self) -> None:
        """All that run now were seen to be ready."""
        for child in self._children.values():
            child.is_met = True

    def on_exit(self, name: str) -> None:
        """Its life is over."""
        del self._children[name]

    def on_round(self, finished: Round, states: Mapping[str, str]) -> list[Stuck]:
        """A round is over.

        Args:
            states: what children said of themselves in it, by name; a server that answered is
                `ready`.

        Returns:
            Stuck children; each once in a life.
        """
        is_void = finished.lasted_ns > self.interval_ns + STANDSTILL_NS
        stuck = []
        for name, child in self._children.items():
            if name in states:
                child.num_missed = 0
                child.is_met |= states[name] == "ready"
            elif not child.is_server and not finished.is_passed_on:
                child.num_missed = 0
            elif child.is_met and not is_void:
                child.num_missed += 1
                silent_ns = child.num_missed * self.interval_ns
                if silent_ns >= self.stuck_after_ns and not child.is_stuck:
                    child.is_stuck = True
                    stuck.append(Stuck(name, silent_ns))
        return stuck

    def silent(self) -> list[str]:
        """Children that answered once, and have not for some time."""
        return [
            name for name, child in self._children.items() if child.num_missed >= SILENT_ROUNDS_MIN
        ]
