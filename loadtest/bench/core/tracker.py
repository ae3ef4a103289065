"""What the tracker's decisions cost beside so many live advisories, for `symphony bench core`."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from loadtest.bench.core import samples
from loadtest.bench.core.driver import CoreBench
from loadtest.bench.core.timing import Took
from services.tracker.core import Effect, Expect, Limits, TrackerCore
from shared.blocks import KEY_BYTES
from shared.ids import HostId, SessionId, TenantId
from shared.wire.messages import (
    Advisory,
    AdvisoryKey,
    AgentRef,
    AgentTurnLeft,
    TurnArrived,
)

EVENTS = 512  # of one kind in a round
TENANTS = 64
AGENTS = ("planner", "coder", "tester", "reviewer")  # of a workflow, one after the other
LAPS = 2  # of them
WORKFLOWS = 64  # of one round, all beside each other
SHARED_BLOCKS = 32  # that all prompts of an agent begin with
EVENT_NS = 10_000
STEP_NS = 500_000_000  # from an agent's turn to its end, when the next one of its workflow comes
LATER_S = 3600.0  # when the turns of what is live beside it all are expected
SOON_S = 3.0


def measure(num_live: int, num_rounds: int) -> dict[str, Any]:
    """Microseconds of each kind of event, and how many turns one of an agent's foresees."""
    took = Took()
    bench = TrackerBench(num_live, took)
    bench.agents_turns("", 0)  # what follows what is learned
    num_foreseen = 0
    for number in range(1, 1 + num_rounds):
        sessions = [SessionId(f"soon-{number}-{at}") for at in range(EVENTS)]
        bench.announce("advisory", sessions, SOON_S)
        bench.arrive("arrival_announced", sessions, reserved=True)
        bench.arrive("arrival_unannounced", (SessionId(f"{each}-no") for each in sessions))
        num_foreseen = bench.agents_turns("agent", number)
    num_turns = WORKFLOWS * len(AGENTS) * LAPS
    return {"tracker": took.us() | {"foreseen_a_turn": round(num_foreseen / num_turns, 2)}}


class TrackerBench(CoreBench[Effect]):
    """A core with so many live advisories, of turns that come much later."""

    def __init__(self, num_live: int, took: Took) -> None:
        super().__init__(took, EVENT_NS)
        limits = replace(Limits(), advisories_max=num_live + 8 * EVENTS)
        self._core = TrackerCore(limits, tracker_id="bench")
        self._num_turns = 0
        self.announce("", (SessionId(f"live-{at}") for at in range(num_live)), LATER_S)
        assert self._core.num_live == num_live

    def _wake(self, at_ns: int) -> list[Effect]:
        return self._core.on_wake(at_ns)

    def announce(self, name: str, sessions: Iterable[SessionId], arrival_s: float) -> None:
        """An advisory of each comes, and the scheduler answers that it has a place."""
        advisories = (
            Advisory(
                session_id=session_id,
                model_id=samples.MODEL,
                tenant=_tenant(at),
                expected_arrival=arrival_s,
                frontend_id=samples.FRONTEND,
                place="10.0.0.1",
                kv_at={HostId("host"): SHARED_BLOCKS},
            )
            for at, session_id in enumerate(sessions)
        )
        asked = _expected(self._each(name, self._handled(self._submitted), advisories))
        self._each(name and "placed", self._handled(self._placed), asked)

    def arrive(self, name: str, sessions: Iterable[SessionId], *, reserved: bool = False) -> None:
        """A turn of each is there."""
        arrived = [
            self._arrived(session_id, _tenant(at), reserved=reserved)
            for at, session_id in enumerate(sessions)
        ]
        self._each(name, self._handled(self._core.on_turn_arrived), arrived)

    def agents_turns(self, name: str, number: int) -> int:
        """Workflows whose agents take turns, one after the other; how many of those were
        foreseen."""
        num_foreseen = 0
        for step in range(len(AGENTS) * LAPS):
            agent = AGENTS[step % len(AGENTS)]
            sessions = [
                SessionId(f"run-{number}-{at}/{agent}-{samples.MODEL}") for at in range(WORKFLOWS)
            ]
            refs = [
                AgentRef(agent=f"shop/{agent}", workflow_id=f"run-{number}-{at}")
                for at in range(WORKFLOWS)
            ]
            turns = list(zip(sessions, refs, strict=True))
            began = [self._arrived(session_id, agent=ref) for session_id, ref in turns]
            arrive = self._handled(self._core.on_turn_arrived)
            foreseen = _expected(self._each(name and f"{name}_arrival", arrive, began))
            self._now_ns += STEP_NS
            keys = f"{AGENTS.index(agent):02x}" * KEY_BYTES * SHARED_BLOCKS
            left = [
                AgentTurnLeft(agent=ref, session_id=session_id, model_id=samples.MODEL, keys=keys)
                for session_id, ref in turns
            ]
            leave = self._handled(self._core.on_agent_turn_left)
            foreseen += _expected(self._each(name and f"{name}_left", leave, left))
            self._each(name and "placed", self._handled(self._placed), foreseen)
            num_foreseen += len(foreseen)
        return num_foreseen

    def _submitted(self, advisory: Advisory, now_ns: int) -> list[Effect]:
        return self._core.on_submit(advisory, now_ns)[1]

    def _placed(self, key: AdvisoryKey, now_ns: int) -> list[Effect]:
        return self._core.on_placed(key, samples.worker_id(0), now_ns)

    def _arrived(
        self,
        session_id: SessionId,
        tenant: TenantId | None = None,
        *,
        reserved: bool = False,
        agent: AgentRef | None = None,
    ) -> TurnArrived:
        self._num_turns += 1
        return TurnArrived(
            session_id=session_id,
            turn_id=samples.turn_id(str(self._num_turns), session_id),
            tenant=tenant or _tenant(0),
            worker_id=samples.worker_id(0),
            reserved=reserved,
            agent=agent,
        )


def _tenant(number: int) -> TenantId:
    return TenantId(f"tenant-{number % TENANTS}")


def _expected(answers: list[list[Effect]]) -> list[AdvisoryKey]:
    """What the scheduler is asked for a place for."""
    return [
        AdvisoryKey(tenant=effect.message.tenant, session_id=effect.message.session_id)
        for effects in answers
        for effect in effects
        if isinstance(effect, Expect)
    ]
