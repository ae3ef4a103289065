"""Decides when a child that died starts again, and when to give up. The time is an argument; no
I/O.

A child that lived for `stable_ns` is forgiven its earlier deaths. One that keeps dying young is
started again after a pause that doubles; after `quick_deaths_max` of those it counts as failing,
and if nothing can be served without it the supervisor gives up. It goes on without any other:
sessions, hints and the KV below are worth less than the streams of those who are served.

Before the deployment has been ready once, any death is final: what cannot start is a wrong setting,
and starting it again would only hide the line that says so.
"""

from dataclasses import dataclass, field

DOUBLINGS_MAX = 32  # of a pause: by then it is as long as it gets


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """How patient to be."""

    pause_ns: int = 100_000_000
    pause_max_ns: int = 60_000_000_000
    stable_ns: int = 10_000_000_000
    quick_deaths_max: int = 5


@dataclass(frozen=True, slots=True)
class StartAt:
    """Start this child again at that instant.

    Attributes:
        is_failing: it keeps dying young.
    """

    name: str
    at_ns: int
    is_failing: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop the whole deployment: this child does not stay alive."""

    name: str
    num_deaths: int


Effect = StartAt | GiveUp


@dataclass(slots=True)
class _Life:
    started_at_ns: int = 0
    num_quick_deaths: int = 0
    start_at_ns: int | None = None  # when it is due again; None while it runs


@dataclass(slots=True)
class Supervision:
    """Lives of the children, by name.

    Attributes:
        restart: whether a child that dies is started again at all, once the deployment was ready.
        essential: children without which nothing can be served.
    """

    limits: RestartLimits = RestartLimits()
    restart: bool = True
    essential: frozenset[str] = frozenset()
    _is_ready: bool = False
    _lives: dict[str, _Life] = field(default_factory=dict)

    def on_started(self, name: str, now_ns: int) -> None:
        """A child runs, for the first time or again."""
        life = self._lives.setdefault(name, _Life())
        life.started_at_ns = now_ns
        life.start_at_ns = None

    def on_ready(self) -> None:
        """A turn can be served: from now on deaths are accidents."""
        self._is_ready = True

    def on_exit(self, name: str, now_ns: int) -> list[Effect]:
        """A child died unasked."""
        life = self._lives[name]
        if not self._is_ready:
            return [GiveUp(name, 1)]
        if not self.restart:
            return []
        if now_ns - life.started_at_ns >= self.limits.stable_ns:
            life.num_quick_deaths = 0
        life.num_quick_deaths += 1
        is_failing = life.num_quick_deaths >= self.limits.quick_deaths_max
        if is_failing and name in self.essential:
            return [GiveUp(name, life.num_quick_deaths)]
        doublings = min(life.num_quick_deaths - 1, DOUBLINGS_MAX)
        pause_ns = min(self.limits.pause_ns << doublings, self.limits.pause_max_ns)
        life.start_at_ns = now_ns + pause_ns
        return [StartAt(name, life.start_at_ns, is_failing)]

    def failing(self) -> list[str]:
        """Children that keep dying young and wait for their next start."""
        return [
            name
            for name, life in self._lives.items()
            if life.start_at_ns is not None
            and life.num_quick_deaths >= self.limits.quick_deaths_max
        ]

    def due(self, now_ns: int) -> list[str]:
        """Children whose pause is over, in the order they were first started."""
        return [
            name
            for name, life in self._lives.items()
            if life.start_at_ns is not None and life.start_at_ns <= now_ns
        ]

    def next_at_ns(self) -> int | None:
        """When the next child is due, if any."""
        return min(
            (life.start_at_ns for life in self._lives.values() if life.start_at_ns is not None),
            default=None,
        )
