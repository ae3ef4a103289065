"""A divided tracker on a real bus."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.scheduler import service as scheduler
from services.scheduler.config import SchedulerConfig
from services.tracker.config import TrackerConfig
from services.tracker.routing import HANDED_ON, MISDIRECTED
from services.tracker.service import main
from shared.bus import Bus
from shared.errors import NobodyListens, NoCapacity
from shared.ids import DEFAULT_TENANT, FrontendId, ModelId, SessionId, TurnId, WorkerId
from shared.wire.messages import (
    Advisory,
    AdvisoryKey,
    AgentRef,
    AgentTurnLeft,
    Empty,
    ExpectSession,
    SessionPlacement,
    TurnArrived,
    TurnsSubmit,
    TurnSubmit,
)
from shared.wire.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
    SERVICE_STATUS,
    SESSION_EXPECT,
    SHARD_ADVISORY_SUBMIT,
    TURN_SUBMIT,
)
from shared.wire.tracker_shards import arrival_wires, left_wire, shard_of
from tests.conftest import Server
from tests.counters import value_of
from tests.integration.harness import connected, eventually, eventually_answers, running
from tests.integration.scheduler.peers import fake_worker

MODEL = ModelId("m")


def names_of(num: int, prefix: str = "s", **shards: int) -> list[SessionId]:
    """Of sessions, or workflows, that are shard `of_2`'s of two, and shard `of_3`'s of three."""
    found: list[SessionId] = []
    number = 0
    while len(found) < num:
        name, number = f"{prefix}{number}", number + 1
        at = {"of_2": shard_of(DEFAULT_TENANT, name, 2), "of_3": shard_of(DEFAULT_TENANT, name, 3)}
        if shards.items() <= at.items():
            found.append(SessionId(name))
    return found


def advisory(session_id: str) -> Advisory:
    return Advisory(session_id=SessionId(session_id), model_id=MODEL)


@asynccontextmanager
async def tracker(server: Server, shard: int, num_shards: int = 2) -> AsyncIterator[None]:
    config = TrackerConfig(
        nats_url=server.url, tracker_shards=num_shards, tracker_shard=shard, tracker_retry_s=0.05
    )
    async with running(main, config, f"tracker-{shard}"):
        yield


async def until_leading(bus: Bus, num: int) -> None:
    await eventually_answers(
        lambda: bus.gather(SERVICE_STATUS, Empty(), timeout_s=0.1),
        lambda told: sum(each.hints is not None for each in told) == num,
    )


async def placing(bus: Bus) -> Counter[str]:
    """How often the scheduler, which this is, was asked for a place of each session."""
    expected: Counter[str] = Counter()

    async def place(message: ExpectSession) -> SessionPlacement:
        expected[message.session_id] += 1
        return SessionPlacement(worker_id=WorkerId("w1"))

    await bus.serve(SESSION_EXPECT, place, "0")
    await bus.flush()
    return expected


def test_what_comes_to_the_wrong_shard_is_acted_on_once_by_the_right_one(
    nats_server: Server,
) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            tracker(nats_server, 0),
            tracker(nats_server, 1),
        ):
            expected = await placing(bus)
            await until_leading(bus, 2)
            num_before = value_of(HANDED_ON), value_of(MISDIRECTED)
            sessions = names_of(20, of_2=1)
            for session_id in sessions:  # NATS gives each to whichever it likes
                assert (await bus.request(ADVISORY_SUBMIT, advisory(session_id))).state == "placed"
            assert expected == dict.fromkeys(sessions, 1)
            assert value_of(HANDED_ON) > num_before[0] and value_of(MISDIRECTED) == num_before[1]
            statuses = await bus.gather(SERVICE_STATUS, Empty(), num_max=2)
            assert sorted(each.hints.num_live for each in statuses if each.hints) == [0, 20]
            for session_id in sessions:
                key = AdvisoryKey(session_id=session_id)
                seen = await bus.request(ADVISORY_GET, key)
                assert (seen.state, seen.worker_id) == ("placed", "w1")
                assert (await bus.request(ADVISORY_INVALIDATE, key)).state == "invalidated"

    asyncio.run(scenario())


def test_what_follows_a_turn_is_announced_where_its_session_is(nats_server: Server) -> None:
    async def scenario() -> None:
        (workflow_id,) = names_of(1, "w", of_2=0)
        sessions = {"a": names_of(1, "a", of_2=0)[0], "b": names_of(1, "b", of_2=1)[0]}
        async with (
            connected(nats_server.url) as bus,
            tracker(nats_server, 0),
            tracker(nats_server, 1),
        ):
            expected = await placing(bus)
            await until_leading(bus, 2)

            async def come_and_go(number: int, name: str) -> None:
                agent, session = AgentRef(agent=name, workflow_id=workflow_id), sessions[name]
                turn_id = TurnId(f"t{number}")
                arrived = TurnArrived(session_id=session, turn_id=turn_id, agent=agent)
                for wire, ids, told in arrival_wires(arrived, 2):
                    await bus.publish(wire, told, *ids)
                await bus.gather(SERVICE_STATUS, Empty(), timeout_s=5, num_max=2)
                left = AgentTurnLeft(agent=agent, session_id=session)
                gone, ids = left_wire(left, 2)
                await bus.publish(gone, left, *ids)
                await bus.gather(SERVICE_STATUS, Empty(), timeout_s=5, num_max=2)

            for number, name in enumerate("abababa"):
                await come_and_go(number, name)
            await eventually(lambda: sessions["b"] in expected and sessions["a"] in expected)
            key = AdvisoryKey(session_id=sessions["b"])
            await eventually_answers(
                lambda: bus.request(ADVISORY_GET, key), lambda state: state.state == "placed"
            )
            await come_and_go(7, "b")
            await eventually_answers(
                lambda: bus.request(ADVISORY_GET, key), lambda state: state.state == "used"
            )

    asyncio.run(scenario())


def test_sessions_of_a_shard_that_is_gone_are_served_without_hints_and_others_with(
    nats_server: Server,
) -> None:
    (gone,), (there,) = names_of(1, of_2=1), names_of(1, of_2=0)

    def turn(number: int, session_id: SessionId) -> TurnsSubmit:
        submit = TurnSubmit(
            turn_id=TurnId(f"t{number}"),
            frontend_id=FrontendId("f"),
            model_id=MODEL,
            num_prompt_tokens=10,
            session_id=session_id,
        )
        return TurnsSubmit(turns=[submit])

    async def scenario() -> None:
        config = SchedulerConfig(
            nats_url=nats_server.url, scheduler_learning_s=0.1, tracker_shards=2
        )
        async with (
            connected(nats_server.url) as bus,
            running(scheduler.main, config, "scheduler"),
            tracker(nats_server, 0),
            fake_worker(nats_server.url, "w1") as worker,
        ):

            async def until(session_id: SessionId, wanted: str) -> None:
                key = AdvisoryKey(session_id=session_id)
                await eventually_answers(
                    lambda: bus.request(ADVISORY_GET, key), lambda state: state.state == wanted
                )

            async with tracker(nats_server, 1):
                await until_leading(bus, 2)
                await bus.request(ADVISORY_SUBMIT, advisory(gone))
                await until(gone, "placed")
                await bus.publish(TURN_SUBMIT, turn(1, gone), "0")
                await until(gone, "used")
            with pytest.raises(NobodyListens):
                await bus.request(SHARD_ADVISORY_SUBMIT, advisory(gone), "1", grace_s=0)
            with pytest.raises(NoCapacity, match="no process serves"):
                await bus.request(ADVISORY_SUBMIT, advisory(gone))
            await bus.request(ADVISORY_SUBMIT, advisory(there))
            await until(there, "placed")
            await bus.publish(TURN_SUBMIT, turn(2, gone), "0")
            await bus.publish(TURN_SUBMIT, turn(3, there), "0")
            await until(there, "used")
            await eventually(lambda: {"t2", "t3"} <= set(worker.held))

    asyncio.run(scenario())


def test_who_disagrees_about_the_number_of_shards_hands_on_once(nats_server: Server) -> None:
    """What one takes for the second's of two, the other takes for the first's of three."""

    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            tracker(nats_server, 0, 2),
            tracker(nats_server, 1, 3),
        ):
            expected = await placing(bus)
            await until_leading(bus, 2)
            num_before = value_of(HANDED_ON), value_of(MISDIRECTED)
            sessions = names_of(10, of_2=1, of_3=0)
            for session_id in sessions:
                assert (await bus.request(ADVISORY_SUBMIT, advisory(session_id))).state == "placed"
            assert expected == dict.fromkeys(sessions, 1)
            num_after = value_of(HANDED_ON), value_of(MISDIRECTED)
            assert num_after == (num_before[0] + 10, num_before[1] + 10)

    asyncio.run(scenario())
