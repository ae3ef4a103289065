"""Who announces calls in a replay: nobody, the production core, or somebody who knows them."""

from dataclasses import dataclass
from typing import Protocol

from loadtest.agents.calls import Call
from services.tracker.core.agents import AgentFollower
from shared.ids import DEFAULT_TENANT, SessionId

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Told:
    """What was known of a call when it came.

    Attributes:
        lead_s: how long before it was announced; None: it was not.
        error_s: how far from when it was expected it came, if that was told.
    """

    lead_s: float | None = None
    error_s: float | None = None


class Policy(Protocol):
    """Says of each call, as it comes, how it was announced."""

    @property
    def num_given(self) -> int: ...  # hints, those included that were given again

    @property
    def num_used(self) -> int: ...  # lives of hints that a call ended

    @property
    def num_expired(self) -> int: ...  # lives of hints that none did

    def begin(self, call: Call, now_s: float, led_from_s: float | None) -> Told:
        """A call begins; one that led to it began at `led_from_s`."""

    def end(self, call: Call, now_s: float) -> None:
        """A call ends."""

    def over(self, workflow: str) -> None:
        """Nothing more comes of this one."""


class Silent:
    """Announces nothing."""

    num_given = num_used = num_expired = 0

    def begin(self, call: Call, now_s: float, led_from_s: float | None) -> Told:
        return Told()

    def end(self, call: Call, now_s: float) -> None:
        """Nothing to note."""

    def over(self, workflow: str) -> None:
        """Nothing to note."""


class Oracle(Silent):
    """Knows, as each call begins, which calls it leads to, and when."""

    def __init__(self) -> None:
        self.num_given = self.num_used = 0

    def begin(self, call: Call, now_s: float, led_from_s: float | None) -> Told:
        if led_from_s is None:
            return Told()
        self.num_given += 1
        self.num_used += 1
        return Told(now_s - led_from_s, 0.0)


class Learned:
    """The production core."""

    def __init__(self, follower: AgentFollower) -> None:
        self._follower = follower

    @property
    def num_given(self) -> int:
        return self._follower.outcomes.num_given

    @property
    def num_used(self) -> int:
        return self._follower.outcomes.num_used

    @property
    def num_expired(self) -> int:
        return self._follower.outcomes.num_expired

    def begin(self, call: Call, now_s: float, led_from_s: float | None) -> Told:
        now_ns = int(now_s * SECOND_NS)
        used = self._follower.on_turn_began(
            DEFAULT_TENANT, call.workflow, call.agent, SessionId(call.session), now_ns
        ).used
        if used is None:
            return Told()
        lead_s = (now_ns - used.sent_at_ns) / SECOND_NS
        if used.arrives_at_ns is None:
            return Told(lead_s)
        return Told(lead_s, abs(now_ns - used.arrives_at_ns) / SECOND_NS)

    def end(self, call: Call, now_s: float) -> None:
        self._follower.on_turn_ended(
            DEFAULT_TENANT,
            call.workflow,
            call.agent,
            SessionId(call.session),
            int(now_s * SECOND_NS),
            tools=call.tools,
        )

    def over(self, workflow: str) -> None:
        self._follower.on_workflow_over(DEFAULT_TENANT, workflow)
