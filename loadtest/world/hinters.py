"""Those who announce turns that never come, or not before tomorrow, or other people's; and one who
announces its turns in order.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from loadtest.sim.http import Request
from loadtest.sim.services.frontend import Frontend, key_of
from loadtest.sim.services.model import MODEL
from loadtest.sim.timeline import Timeline
from shared.ids import SessionId, TenantId

TENANTS = (TenantId("a"), TenantId("b"))
SPAMMERS, LAST_TENANT = TenantId("spammers"), TenantId("last")
ALL_TENANTS = (*TENANTS, SPAMMERS, LAST_TENANT)
NUM_HINTS = (0, 0, 30, 150)  # of a world
FAR_SHARE, NUM_FAR = 0.25, 24  # of worlds; and hints of theirs
DAY_S, FAR_TTL_MAX_MS = 86_400.0, 10_000
ADDRESS, LAST_ADDRESS = "10.0.0.1", "10.0.0.2"
FLOOD_ADDRESSES = ("10.0.1.1", "10.0.1.2")
TAKEN, UNKNOWN, THROTTLED, UNAVAILABLE = 202, 404, 429, 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """An advisory, as its sender writes it."""

    session_id: SessionId
    tenant: TenantId
    model: str | None = None
    expected_arrival: float | None = None
    priority: int | None = None
    ttl_ms: int | None = None
    is_ordered: bool = False
    workflow_id: str | None = None
    address: str = ADDRESS

    def request(self) -> Request:
        """Over HTTP."""
        fields = {
            "session_id": self.session_id,
            "model": self.model,
            "expected_arrival": self.expected_arrival,
            "priority": self.priority,
            "ttl_ms": self.ttl_ms,
            "workflow_id": self.workflow_id,
            "ordered": self.is_ordered,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        return Request(
            path="/v1/advisories",
            body=json.dumps(body).encode(),
            address=self.address,
            headers={"Authorization": f"Bearer {key_of(self.tenant)}"},
        )


class HintReader:
    """An advisory may be refused, but the frontend does not fail.

    Args:
        hint: what is answered. Of an adapter a frontend may know nothing while Redis has lost its
            record; the base model's name it knows.
    """

    def __init__(self, hint: Hint) -> None:
        is_adapter = hint.model not in (None, MODEL)
        self._expected = {TAKEN, THROTTLED, UNAVAILABLE} | ({UNKNOWN} if is_adapter else set())
        self._status = 0

    def on_status(self, status: int) -> None:
        self._status = status

    def on_data(self, data: bytes) -> None:
        is_expected = self._status in self._expected
        assert is_expected, f"an advisory is answered with {self._status} {data!r}"

    def on_end(self) -> None:
        """Nothing follows."""

    def on_broken(self, **_: Any) -> None:
        """It may be lost."""


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

    def send(self, hint: Hint, frontend: Frontend) -> None:
        """Send an advisory, whatever becomes of it."""
        frontend.request(hint.request(), HintReader(hint))

    def announce_around(self, last: Hint, frontend: Frontend) -> None:
        """Three turns in order, of which only the second will come. Each is sent once the one
        before it was answered, or the frontend would take them in any order.
        """
        names = iter(("before", last.session_id, "after"))

        def send_next(*_: object, **__: object) -> None:
            if (name := next(names, None)) is None:
                return
            hint = Hint(
                session_id=SessionId(name),
                tenant=last.tenant,
                model=last.model,
                expected_arrival=last.expected_arrival,
                is_ordered=True,
                workflow_id="in order",
                address=LAST_ADDRESS,
            )
            reader = HintReader(hint)
            reader.on_end = send_next  # type: ignore[method-assign]
            frontend.request(hint.request(), reader)

        send_next()

    def announce_far(self, random: Random, num_sessions: int) -> None:
        """Announce for tomorrow: turns of existing sessions, which end sooner,
        of sessions of other tenants, and of sessions that do not exist.

        Args:
            random: decides when and what.
        """
        for _ in range(NUM_FAR if random.random() < FAR_SHARE else 0):
            tenant = random.choice([*TENANTS, SPAMMERS, SPAMMERS])
            hint = Hint(
                session_id=SessionId(f"s{random.randrange(2 * num_sessions)}"),
                tenant=tenant,
                model=MODEL,
                expected_arrival=DAY_S,
                priority=random.randrange(3),
                ttl_ms=None if tenant == SPAMMERS else random.randrange(1, FAR_TTL_MAX_MS),
                address=random.choice(FLOOD_ADDRESSES),
            )
            at_ns = random.randrange(self._asking_ns)
            self._timeline.after(at_ns, partial(self._send, hint, random))

    def _send(self, hint: Hint, random: Random) -> None:
        if (frontend := self._some_frontend(random)) is not None:
            self.send(hint, frontend)

    def _some_frontend(self, random: Random) -> Frontend | None:
        listening = [frontend for frontend in self._frontends if frontend.is_listening]
        return random.choice(listening) if listening else None

    def _spam(self) -> None:
        random = self._random
        if (frontend := self._some_frontend(random)) is None:
            return
        hint = Hint(
            session_id=SessionId(f"unknown-{random.randrange(60)}"),
            tenant=SPAMMERS,
            expected_arrival=random.choice([None, 0.5, 8.0]),
            ttl_ms=random.choice([None, 1000]),
            is_ordered=random.random() < 0.3,
            address=random.choice(FLOOD_ADDRESSES),
        )
        self.send(hint, frontend)
