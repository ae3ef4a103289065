"""A tracker: a candidate for the lease of trackers, the production core, and its questions to the
scheduler.
"""

from typing import Any, ClassVar

from loadtest.sim.timeline import SECOND
from loadtest.world.alarm import Alarm
from loadtest.world.candidate import Candidate, Election
from loadtest.world.deployment import SimDeployment
from loadtest.world.wires import Reply
from services.tracker.core import (
    AgentTurns,
    Count,
    Drop,
    Effect,
    Expect,
    ForwardForeseen,
    Limits,
    ObserveLead,
    SendVerdicts,
    Shards,
    TrackerCore,
)
from services.tracker.core.agents import AgentFollower, AgentLimits
from shared.effects import WakeAt
from shared.errors import SymphonyError
from shared.wire.messages import (
    Advisory,
    AdvisoryKey,
    AdvisoryState,
    AgentTurnLeft,
    ExpectSession,
    TurnArrived,
    TurnsForeseen,
)
from shared.wire.shards import session_shard
from shared.wire.subjects import (
    ADVISORY_SUBMIT,
    AGENT_TURN_LEFT,
    HINTS_ENDED,
    SESSION_DROP,
    SESSION_EXPECT,
    SHARD_ADVISORY_SUBMIT,
    SHARD_AGENT_TURN_LEFT,
    SHARD_TURN_ARRIVED,
    TURN_ARRIVED,
    TURNS_FORESEEN,
)

PLACEMENT_TIMEOUT_NS = 2 * SECOND
HAND_ON_TIMEOUT_NS = 3 * SECOND // 2
SLACK_NS = 3 * SECOND
WORKFLOWS_MAX = 4  # fewer than there are


class Tracker(Candidate):
    """Attributes:
    limits, agent_limits: small, so that they are reached.
    shards: which part of the deployment it has.
    core: live advisories, of this life.
    follower: what it knows of agents.
    """

    limits: ClassVar = Limits(ttl_ns=5 * SECOND, slack_ns=SLACK_NS)
    agent_limits: ClassVar = AgentLimits(
        workflows_max=WORKFLOWS_MAX, arrival_max_ns=2 * SECOND, slack_ns=SLACK_NS
    )

    def __init__(
        self, deployment: SimDeployment, election: Election, number: int, shard: int = 0
    ) -> None:
        super().__init__(deployment, f"tracker-{shard}-{number}", election, f"tracker-{shard}")
        self.shards = Shards(deployment.num_tracker_shards, shard)

    def on_start(self) -> None:
        self._has_led = False
        self.follower = AgentFollower(self.agent_limits)
        self.core = TrackerCore(
            self.limits,
            AgentTurns(self.follower),
            tracker_id=f"{self.name}-{self.life}",
            is_spare=True,
            shards=self.shards,
        )
        self._alarm = Alarm(self, self._wake)
        wires = self.deployment.wires
        own = str(self.shards.own)
        wires.listen(self, TURN_ARRIVED, lambda message, _: self._on_arrived(message))
        wires.listen(self, AGENT_TURN_LEFT, lambda message, _: self._on_left(message))
        wires.listen(self, SHARD_TURN_ARRIVED, lambda message, _: self._on_arrived(message), own)
        wires.listen(self, SHARD_AGENT_TURN_LEFT, lambda message, _: self._on_left(message), own)
        wires.listen(self, TURNS_FORESEEN, lambda message, _: self._on_foreseen(message), own)
        super().on_start()

    def on_lead(self) -> None:
        if not self._has_led:
            self._has_led = True
            self._be_present()
            wires, own = self.deployment.wires, str(self.shards.own)
            wires.listen(self, ADVISORY_SUBMIT, self._on_any_submit)
            wires.listen(self, SHARD_ADVISORY_SUBMIT, self._on_submit, own)
            self._perform(self.core.on_lead(self.now_ns))

    def _on_any_submit(self, advisory: Advisory, reply: Reply) -> None:
        shard = self.shards.other(advisory.tenant, advisory.session_id)
        if shard is None:
            self._on_submit(advisory, reply)
            return
        self.deployment.wires.request(
            self, SHARD_ADVISORY_SUBMIT, advisory, reply, reply,
            ident=str(shard), timeout_ns=HAND_ON_TIMEOUT_NS,
        )  # fmt: skip

    def _on_submit(self, advisory: Advisory, reply: Reply) -> None:
        try:
            record, effects = self.core.on_submit(advisory, self.now_ns)
        except SymphonyError as error:
            reply(error)
            return
        self._perform(effects)
        state = AdvisoryState(
            session_id=advisory.session_id, state=record.state, num_merged=record.num_merged
        )
        reply(state)

    def _on_arrived(self, arrived: TurnArrived) -> None:
        self._perform(self.core.on_turn_arrived(arrived, self.now_ns))

    def _on_left(self, left: AgentTurnLeft) -> None:
        self._perform(self.core.on_agent_turn_left(left, self.now_ns))

    def _on_foreseen(self, message: TurnsForeseen) -> None:
        self._perform(self.core.on_foreseen(message, self.now_ns))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Expect(message):
                    self._ask(message)
                case Drop(key):
                    self.deployment.wires.request(
                        self, SESSION_DROP, key, lambda _: None, lambda _: None,
                        ident=self._scheduler_of(key), timeout_ns=PLACEMENT_TIMEOUT_NS,
                    )  # fmt: skip
                case Count() | ObserveLead():
                    pass
                case ForwardForeseen(shard, message):
                    self.deployment.wires.send(self, TURNS_FORESEEN, message, str(shard))
                case SendVerdicts(frontend_id, ended):
                    self.deployment.wires.send(self, HINTS_ENDED, ended, frontend_id)
                case WakeAt(at_ns):
                    self._alarm.set(at_ns)

    def _ask(self, message: ExpectSession) -> None:
        key = AdvisoryKey(tenant=message.tenant, session_id=message.session_id)

        def on_reply(placement: Any) -> None:
            self._perform(self.core.on_placed(key, placement.worker_id, self.now_ns))

        def on_error(_: SymphonyError) -> None:
            self._perform(self.core.on_placed(key, None, self.now_ns))

        self.deployment.wires.request(
            self, SESSION_EXPECT, message, on_reply, on_error,
            ident=self._scheduler_of(key), timeout_ns=PLACEMENT_TIMEOUT_NS,
        )  # fmt: skip

    def _scheduler_of(self, key: AdvisoryKey) -> str:
        return str(session_shard(key.tenant, key.session_id, self.deployment.num_shards))

    def _wake(self) -> bool:
        self._perform(self.core.on_wake(self.now_ns))
        return True
