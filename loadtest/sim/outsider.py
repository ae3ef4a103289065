"""A client that uses the tracker's public subjects by NATS, without a frontend between them."""

from functools import partial
from random import Random

from loadtest.sim.process import Ground, Process
from shared.errors import SymphonyError
from shared.ids import SessionId, TenantId
from shared.wire.messages import AdvisoryKey, AdvisoryState
from shared.wire.subjects import ADVISORY_GET, ADVISORY_INVALIDATE, Subject

Question = Subject[AdvisoryKey, AdvisoryState]

CROWD_SHARE = 0.1  # of worlds: it asks more often than a service answers at once
NUM_ASKED, NUM_OF_CROWD = 6, 300
TENANT = TenantId("outside")


class Outsider(Process):
    """Asks for advisories that do not exist, and takes them back; no fault befalls it but that the
    server is away.

    Args:
        asking_ns: it asks within that time.

    Attributes:
        is_answered: the latest question of `ask` was answered.
    """

    def __init__(self, ground: Ground, random: Random, asking_ns: int) -> None:
        super().__init__(ground, "outsider")
        self.is_answered = False
        is_crowd = random.random() < CROWD_SHARE
        for number in range(NUM_OF_CROWD if is_crowd else NUM_ASKED):
            subject = ADVISORY_GET if number % NUM_ASKED else ADVISORY_INVALIDATE
            at_ns = random.randrange(asking_ns)
            ground.timeline.after(at_ns, partial(self.ask, subject, f"none-{number}"))

    def on_start(self) -> None:
        """It only asks."""

    def ask(self, subject: Question = ADVISORY_GET, session: str = "none") -> None:
        """Ask about a session of which no advisory is known."""
        self.run(self.life, partial(self._ask, subject, session))

    def _ask(self, subject: Question, session: str) -> None:
        self.is_answered = False
        key = AdvisoryKey(session_id=SessionId(session), tenant=TENANT)
        self.deployment.wires.request(self, subject, key, _refuse, self._on_error)

    def _on_error(self, error: SymphonyError) -> None:
        self.is_answered = error.code == "advisory_not_found"


def _refuse(state: AdvisoryState) -> None:
    raise AssertionError(f"an advisory that no client sent: {state}")
