"""Those who announce turns that never come, and one who announces its turns in order."""

from collections.abc import Sequence
from functools import partial
from random import Random

from loadtest.world.frontend import Frontend
from loadtest.world.timeline import Timeline
from shared.ids import SessionId, TenantId
from shared.messages import Advisory

SPAMMERS, LAST_TENANT = TenantId("spammers"), TenantId("last")
NUM_HINTS = (0, 0, 30, 150)  # of a world
PLACES = ("flood-1", "flood-2")
LAST_PLACE = "last"


class Hinters:
    """Senders of advisories without sessions.

    Args:
        random: their own, so that nobody else's acts depend on them.
        asking_ns: they send in that time.
    """

    def __init__(
        self, timeline: Timeline, frontends: Sequence[Frontend], random: Random, asking_ns: int
    ) -> None:
        self._timeline = timeline
        self._frontends = frontends
        self._random = random
        for _ in range(random.choice(NUM_HINTS)):
            timeline.after(random.randrange(asking_ns), self._spam)

    def order(self) -> bool:
        """Whether somebody says of an advisory that it stands in order, be it true or not."""
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

    def _spam(self) -> None:
        ready = [frontend for frontend in self._frontends if frontend.is_ready]
        if not ready:
            return
        frontend, random = self._random.choice(ready), self._random
        advisory = Advisory(
            session_id=SessionId(f"nobody-{random.randrange(60)}"),
            tenant=SPAMMERS,
            expected_arrival=random.choice([None, 0.5, 8.0]),
            ttl_ms=random.choice([None, 1000]),
            ordered=random.random() < 0.3,
            place=random.choice(PLACES),
        )
        frontend.run(frontend.life, lambda: frontend.advise(advisory))
