"""Who announces calls in a replay: nobody, the production core, or somebody who knows them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from loadtest.agents.calls import Call
from services.tracker.core.agents import AgentFollower
from services.tracker.core.agents.prefixes import AgentPrefixes
from shared.blocks import NO_PARENT
from shared.ids import DEFAULT_TENANT, ModelId, SessionId

SECOND_NS = 1_000_000_000
NO_MODEL = ModelId("")


@dataclass(frozen=True, slots=True)
class Told:
    """What was known of a call when it came.

    Attributes:
        lead_s: how long before it was announced; None: it was not.
        error_s: how far from when it was expected it came, if that was told.
        is_new: its session was not there before, so that there was no history to announce.
        has_prefix: what its agent's prompts begin with was known, and announced in place of that.
    """

    lead_s: float | None = None
    error_s: float | None = None
    is_new: bool = False
    has_prefix: bool = False


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
    """The production core. Traces tell no prompts: all of an agent's are taken to begin alike.

    Args:
        learned_from: calls whose prompts it has seen before.
    """

    def __init__(self, follower: AgentFollower, learned_from: Iterable[Call] = ()) -> None:
        self._follower = follower
        self._prefixes = AgentPrefixes()
        for call in learned_from:
            self._see_prompt(call)

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
        error_s = None
        if used.arrives_at_ns is not None:
            error_s = abs(now_ns - used.arrives_at_ns) / SECOND_NS
        is_new = used.hint.session_id is None
        has_prefix = is_new and self._prefixes.of((DEFAULT_TENANT, call.agent)) is not None
        return Told((now_ns - used.sent_at_ns) / SECOND_NS, error_s, is_new, has_prefix)

    def end(self, call: Call, now_s: float) -> None:
        self._follower.on_turn_ended(
            DEFAULT_TENANT,
            call.workflow,
            call.agent,
            SessionId(call.session),
            int(now_s * SECOND_NS),
            tools=call.tools,
        )
        self._see_prompt(call)

    def over(self, workflow: str) -> None:
        self._follower.on_workflow_over(DEFAULT_TENANT, workflow)

    def _see_prompt(self, call: Call) -> None:
        who, session_id = (DEFAULT_TENANT, call.agent), SessionId(call.session)
        self._prefixes.learn(who, session_id, NO_MODEL, None, NO_PARENT)
