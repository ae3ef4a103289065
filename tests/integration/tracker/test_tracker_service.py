"""The tracker on a real bus, alone and with the real scheduler."""

import asyncio
from dataclasses import replace

import pytest

from services.scheduler import service as scheduler
from services.scheduler.config import SchedulerConfig
from services.tracker.config import TrackerConfig
from services.tracker.service import main
from shared.bus import Bus
from shared.errors import InvalidRequest, NotFound, TenantQuota
from shared.ids import FrontendId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.wire.messages import (
    Advisory,
    AdvisoryKey,
    AdvisoryState,
    AgentRef,
    AgentTurnLeft,
    Empty,
    ExpectSession,
    HintsEnded,
    SessionPlacement,
    TurnArrived,
    TurnsSubmit,
    TurnSubmit,
)
from shared.wire.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
    AGENT_TURN_LEFT,
    HINTS_ENDED,
    SERVICE_STATUS,
    SESSION_EXPECT,
    TURN_ARRIVED,
    TURN_SUBMIT,
)
from tests.conftest import Server
from tests.integration.harness import connected, eventually, eventually_answers, running
from tests.integration.scheduler.peers import fake_worker

SESSION = SessionId("s")
KEY = AdvisoryKey(session_id=SESSION)
ADVISORY = Advisory(session_id=SESSION, model_id=ModelId("m"))


def config(server: Server) -> TrackerConfig:
    return TrackerConfig(nats_url=server.url, tracker_retry_s=0.05)


async def until_state(bus: Bus, wanted: str) -> AdvisoryState:
    """Ask until the advisory has this state."""
    return await eventually_answers(
        lambda: bus.request(ADVISORY_GET, KEY), lambda state: state.state == wanted
    )


def test_from_advisory_to_turn_with_the_scheduler(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(
                scheduler.main,
                SchedulerConfig(nats_url=nats_server.url, scheduler_learning_s=0.1),
                "scheduler",
            ),
            running(main, config(nats_server), "tracker"),
            fake_worker(nats_server.url, "w1") as worker,
        ):
            await bus.request(ADVISORY_SUBMIT, ADVISORY)
            state = await until_state(bus, "placed")
            assert state.worker_id == "w1"
            assert state.expires - state.created == pytest.approx(60)
            await eventually(lambda: bool(worker.prefetched))
            submit = TurnSubmit(
                turn_id=TurnId("t"),
                frontend_id=FrontendId("f"),
                model_id=ModelId("m"),
                num_prompt_tokens=10,
                session_id=SESSION,
            )
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[submit]), "0")
            await until_state(bus, "used")
            again = await bus.request(ADVISORY_SUBMIT, ADVISORY)
            assert (again.state, again.worker_id) == ("placed", "w1")
            assert (await bus.request(ADVISORY_INVALIDATE, KEY)).state == "invalidated"

    asyncio.run(scenario())


def test_an_agent_s_turn_brings_up_the_one_that_follows(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(
                scheduler.main,
                SchedulerConfig(nats_url=nats_server.url, scheduler_learning_s=0.1),
                "scheduler",
            ),
            running(main, config(nats_server), "tracker"),
            fake_worker(nats_server.url, "w1") as worker,
        ):

            async def run(turn_id: str, name: str) -> None:
                agent = AgentRef(agent=name, workflow_id="w")
                session = SessionId(f"s-{name}")
                submit = TurnSubmit(
                    turn_id=TurnId(turn_id),
                    frontend_id=FrontendId("f"),
                    model_id=ModelId("m"),
                    num_prompt_tokens=10,
                    session_id=session,
                    agent=agent,
                )
                await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[submit]), "0")
                await eventually(lambda: turn_id in worker.held)
                await bus.publish(AGENT_TURN_LEFT, AgentTurnLeft(agent=agent, session_id=session))

            for number, name in enumerate("abababab"):
                await run(f"t{number}", name)
            await eventually(lambda: {each.session_id for each in worker.prefetched} >= {"s-a"})

    asyncio.run(scenario())


def test_without_a_scheduler_the_advisory_is_held_and_placed_later(nats_server: Server) -> None:
    async def scenario() -> None:
        async with connected(nats_server.url) as bus, running(main, config(nats_server)):
            state = await bus.request(ADVISORY_SUBMIT, ADVISORY)
            assert state.state == "expected"

            async def place(_: ExpectSession) -> SessionPlacement:
                return SessionPlacement(worker_id=WorkerId("w9"))

            await bus.serve(SESSION_EXPECT, place, "0")
            assert (await until_state(bus, "placed")).worker_id == "w9"

    asyncio.run(scenario())


def test_a_tenant_has_its_own_advisories_and_no_other_s(nats_server: Server) -> None:
    async def scenario() -> None:
        async with connected(nats_server.url) as bus, running(main, config(nats_server)):
            await bus.request(ADVISORY_SUBMIT, replace(ADVISORY, tenant=TenantId("acme")))
            mine, other = (replace(KEY, tenant=TenantId(name)) for name in ("acme", "globex"))
            assert (await bus.request(ADVISORY_GET, mine)).tenant == "acme"
            for subject in (ADVISORY_GET, ADVISORY_INVALIDATE):
                with pytest.raises(NotFound):
                    await bus.request(subject, other)
            gone = await bus.request(ADVISORY_INVALIDATE, mine)
            assert gone.state == "invalidated"

    asyncio.run(scenario())


def test_errors_reach_the_caller(nats_server: Server) -> None:
    async def scenario() -> None:
        async with connected(nats_server.url) as bus, running(main, config(nats_server)):
            with pytest.raises(InvalidRequest) as wrong:
                await bus.request(ADVISORY_SUBMIT, Advisory(session_id=SESSION, priority=11))
            assert wrong.value.param == "priority"
            for subject in (ADVISORY_GET, ADVISORY_INVALIDATE):
                with pytest.raises(NotFound) as unknown:
                    await bus.request(subject, KEY)
                assert unknown.value.code == "advisory_not_found"

    asyncio.run(scenario())


def test_a_tenant_at_its_limit_is_told_to_come_again(nats_server: Server) -> None:
    async def scenario() -> None:
        limited = TrackerConfig(nats_url=nats_server.url, tracker_tenant_advisories_max=1)
        async with connected(nats_server.url) as bus, running(main, limited):
            other = replace(ADVISORY, session_id=SessionId("other"))
            await bus.request(ADVISORY_SUBMIT, ADVISORY)
            with pytest.raises(TenantQuota) as refused:
                await bus.request(ADVISORY_SUBMIT, other)
            assert (refused.value.http_status, refused.value.code) == (429, "tenant_quota")
            await bus.request(ADVISORY_SUBMIT, replace(other, tenant=TenantId("b")))

    asyncio.run(scenario())


def test_what_became_of_advisories_is_told_to_the_frontend_and_to_status(
    nats_server: Server,
) -> None:
    async def place(_: ExpectSession) -> SessionPlacement:
        return SessionPlacement(worker_id=WorkerId("w1"))

    async def scenario() -> None:
        settings = config(nats_server).model_copy(update={"hints_per_client": 8})
        async with (
            connected(nats_server.url) as bus,
            running(main, settings, "tracker"),
        ):
            heard: list[HintsEnded] = []
            await bus.subscribe(HINTS_ENDED, heard.append, "f")
            await bus.serve(SESSION_EXPECT, place, "0")
            await bus.flush()
            taken = replace(ADVISORY, frontend_id=FrontendId("f"), place="10.0.0.7", agent="qa")
            state = await bus.request(ADVISORY_SUBMIT, taken)
            assert (state.agent, state.acted_on, state.why) == ("qa", True, "")
            await bus.publish(TURN_ARRIVED, TurnArrived(session_id=SESSION, turn_id=TurnId("t")))
            await eventually(lambda: bool(heard))
            (verdict,) = heard[0].verdicts
            assert (verdict.place, verdict.num_used) == ("10.0.0.7", 1) and heard[0].tracker_id

            async def send_directly() -> None:
                for number in range(12):
                    session_id = SessionId(f"x{number}")
                    await bus.request(ADVISORY_SUBMIT, replace(ADVISORY, session_id=session_id))

            with pytest.raises(TenantQuota) as refusal:
                await send_directly()
            assert refusal.value.code == "hints_throttled"
            status = await bus.request(SERVICE_STATUS, Empty())
            assert status.hints is not None and status.hints.throttled[0].place == "nats"
            assert [(rate.tenant, rate.hits) for rate in status.hints.rates] == [("default", 1.0)]

    asyncio.run(scenario())


def test_the_first_of_two_at_once_repeats_nothing(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(main, config(nats_server), "tracker"),
        ):

            async def place(_: ExpectSession) -> SessionPlacement:
                await eventually_answers(
                    lambda: bus.request(ADVISORY_GET, KEY), lambda state: state.num_merged == 1
                )
                return SessionPlacement(worker_id=WorkerId("w1"))

            await bus.serve(SESSION_EXPECT, place, "0")
            await bus.flush()
            told = replace(ADVISORY, frontend_id=FrontendId("f"), place="p")
            states = await asyncio.gather(*(bus.request(ADVISORY_SUBMIT, told) for _ in range(2)))
            assert sorted(state.num_merged for state in states) == [0, 1]
            with pytest.raises(InvalidRequest, match="frontend_id"):
                await bus.request(ADVISORY_SUBMIT, replace(told, frontend_id=FrontendId("a.b")))

    asyncio.run(scenario())
