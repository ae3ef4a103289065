"""Those who announce turns that never come, or not before tomorrow, or other people's; and one who
announces its turns in order.
"""

from collections.abc import Sequence
from functools import partial
from random import Random

from loadtest.sim.timeline import Timeline
from loadtest.world.frontend import Frontend
from loadtest.world.model import MODEL
from shared.ids import SessionId, TenantId
from shared.wire.messages import Advisory

TENANTS = (TenantId("a"), TenantId("b"))
SPAMMERS, LAST_TENANT = TenantId("spammers"), TenantId("last")
NUM_HINTS = (0, 0, 30, 150)  # of a world
FAR_SHARE, NUM_FAR = 0.25, 24  # of worlds; and hints of theirs
DAY_S, FAR_TTL_MAX_MS = 86_400.0, 10_000
PLACES = ("flood-1", "flood-2")
LAST_PLACE = "last"


class Hinters:
    """Senders of advisories without sessions.

    Args:
        random: their own generator, so that no other process depends on theirs.
        asking_ns: they send in that time.
    """

    def __init__(
        self, timeline: Timeline, frontends: Sequence[Frontend], random: Random, asking_ns: int
    ) -> None:
        self._timeline = timeline
        self._frontends = frontends
        self._random = random
        self._asking_ns = asking_ns
        for _ in range(random.choice(NUM_HINTS)):
            timeline.after(random.randrange(asking_ns), self._spam)

    def order(self) -> bool:
        """Whether an advisory claims to be in order, truly or not."""
        return self._random.random() < 0.2

    def announce_around(self, last: Advisory, frontend: Frontend) -> None:
        """Three turns in order, of which only the second will come."""
        for name in ("before", last.session_id, "after"):
            advisory = Advisory(
                session_id=SessionId(name),
                tenant=last.tenant,
                model_id=last.model_id,
                expected_arrival=last.expected_arrival,
                ordered=True,
                workflow_id="in order",
                place=LAST_PLACE,
            )
            frontend.run(frontend.life, partial(frontend.advise, advisory))

    def announce_far(self, random: Random, num_sessions: int) -> None:
        """Announce for tomorrow: turns of existing sessions, which end sooner,
        of sessions of other tenants, and of sessions that do not exist.

        Args:
            random: decides when and what.
        """
        for _ in range(NUM_FAR if random.random() < FAR_SHARE else 0):
            tenant = random.choice([*TENANTS, SPAMMERS, SPAMMERS])
            advisory = Advisory(
                session_id=SessionId(f"s{random.randrange(2 * num_sessions)}"),
                tenant=tenant,
                model_id=MODEL,
                expected_arrival=DAY_S,
                priority=random.randrange(3),
                ttl_ms=None if tenant == SPAMMERS else random.randrange(1, FAR_TTL_MAX_MS),
                place=random.choice(PLACES),
            )
            at_ns = random.randrange(self._asking_ns)
            self._timeline.after(at_ns, partial(self._send, advisory, random))

    def _send(self, advisory: Advisory, random: Random) -> None:
        if (frontend := self._some_frontend(random)) is not None:
            frontend.run(frontend.life, partial(frontend.advise, advisory))

    def _some_frontend(self, random: Random) -> Frontend | None:
        ready = [frontend for frontend in self._frontends if frontend.is_ready]
        return random.choice(ready) if ready else None

    def _spam(self) -> None:
        random = self._random
        if (frontend := self._some_frontend(random)) is None:
            return
        advisory = Advisory(
            session_id=SessionId(f"nobody-{random.randrange(60)}"),
            tenant=SPAMMERS,
            expected_arrival=random.choice([None, 0.5, 8.0]),
            ttl_ms=random.choice([None, 1000]),
            ordered=random.random() < 0.3,
            place=random.choice(PLACES),
        )
        frontend.run(frontend.life, lambda: frontend.advise(advisory))
