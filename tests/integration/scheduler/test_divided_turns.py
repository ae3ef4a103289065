"""Two schedulers that divide turns, on a real bus."""

import asyncio
from dataclasses import replace
from functools import partial

from services.scheduler.config import SchedulerConfig
from services.scheduler.service import main
from shared.bus import Bus
from shared.ids import DEFAULT_TENANT, SessionId, TurnId
from shared.wire.deployment_view import whole_status
from shared.wire.messages import (
    Empty,
    ExpectSession,
    SchedulerStatus,
    TurnCancel,
    TurnFailed,
    TurnsSubmit,
    TurnSubmit,
)
from shared.wire.shards import by_shard, session_shard, turn_id_in, turn_shard
from shared.wire.subjects import (
    SCHEDULER_PING,
    SCHEDULER_STATUS,
    SESSION_EXPECT,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_SUBMIT,
)
from tests.conftest import Server
from tests.integration.harness import connected, eventually, eventually_answers, running
from tests.integration.scheduler.peers import FakeWorker, fake_worker
from tests.integration.scheduler.test_scheduler_service import config, turn

SESSIONS = [SessionId(f"s{number}") for number in range(8)]


def a_turn(session: SessionId) -> TurnSubmit:
    submit = turn(turn_id_in(f"t-{session}", DEFAULT_TENANT, session))
    return replace(submit, session_id=session)


async def send(bus: Bus, turns: list[TurnSubmit]) -> None:
    for shard, its in by_shard(turns, 2).items():
        await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=its), str(shard))


async def statuses(bus: Bus) -> list[SchedulerStatus]:
    return await bus.gather(SCHEDULER_STATUS, Empty(), timeout_s=2.0, num_max=2)


def shard_config(server: Server, shard: int) -> SchedulerConfig:
    told = {"scheduler_role": "shard", "scheduler_shard": shard, "scheduler_shards": 2}
    return config(server).model_copy(update=told)


async def until_all_know(bus: Bus, *workers: FakeWorker) -> None:
    wanted = {worker.worker_id for worker in workers}

    def is_known(parts: list[SchedulerStatus]) -> bool:
        return len(parts) == 2 and all(
            wanted <= {worker.worker_id for worker in part.workers} for part in parts
        )

    await eventually_answers(lambda: statuses(bus), is_known)


async def until_all_count(num_turns: int, *workers: FakeWorker) -> None:
    """Until each scheduler knows of that many turns on the workers, its own and its peer's, from
    reports that list them: what a peer announces counts as over if reports behind it do not.
    """

    def counts(parts: list[SchedulerStatus]) -> bool:
        nums = [sum(worker.num_turns for worker in part.workers) for part in parts]
        return nums == [num_turns] * 2

    await eventually(lambda: sum(len(worker.held) for worker in workers) == num_turns)
    before = [worker.seq for worker in workers]
    await eventually(
        lambda: all(worker.seq >= seq + 2 for worker, seq in zip(workers, before, strict=True))
    )
    for worker in workers:  # on its connection: schedulers have read its reports before
        await eventually_answers(partial(statuses, worker.bus), counts)


def test_each_serves_its_sessions_and_goes_on_when_the_other_is_gone(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            fake_worker(nats_server.url, "w1") as first,
            fake_worker(nats_server.url, "w2") as second,
            running(main, shard_config(nats_server, 0)),
        ):
            turns = [a_turn(session) for session in SESSIONS]
            shares = by_shard(turns, 2)
            assert set(shares) == {0, 1}, "sessions of both"
            async with running(main, shard_config(nats_server, 1)):
                await until_all_know(bus, first, second)
                await send(bus, shares[0])
                await until_all_count(len(shares[0]), first, second)
                await send(bus, shares[1])
                await eventually(lambda: len(first.held) + len(second.held) == len(turns))
                assert abs(len(first.held) - len(second.held)) <= 2, "by one view of load"

                def is_whole(parts: list[SchedulerStatus]) -> bool:
                    whole = whole_status(parts)
                    assert whole is not None
                    nums = [worker.num_turns for worker in whole.workers]
                    return sum(nums) == whole.num_turns_placed == len(turns)

                await eventually_answers(lambda: statuses(bus), is_whole)
                session = SESSIONS[0]
                shard = str(session_shard(DEFAULT_TENANT, session, 2))
                placement = await bus.request(
                    SESSION_EXPECT, ExpectSession(session_id=session), shard
                )
                assert placement.worker_id in {"w1", "w2"}
                held = {**first.held, **second.held}
                cancelled = TurnId(next(iter(held)))
                its = str(turn_shard(cancelled, 2))
                await bus.publish(TURN_CANCEL, TurnCancel(turn_id=cancelled), its)
                await eventually(lambda: len(first.held) + len(second.held) == len(turns) - 1)
            assert not await bus.has_responder(SCHEDULER_PING, Empty(), "1")
            assert await bus.has_responder(SCHEDULER_PING, Empty(), "0")
            more = [replace(each, turn_id=TurnId("u-" + each.turn_id)) for each in shares[0]]
            await send(bus, more)
            names = {each.turn_id for each in more}
            await eventually(lambda: names <= first.held.keys() | second.held.keys())
            assert not first.cancelled + second.cancelled or {
                each.turn_id for each in first.cancelled + second.cancelled
            } == {cancelled}, "the other's turns are left alone"

    asyncio.run(scenario())


def test_a_frontend_that_counts_otherwise_is_told(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(main, shard_config(nats_server, 0)),
            fake_worker(nats_server.url, "w1"),
        ):
            failed: list[TurnFailed] = []
            await bus.subscribe(TURN_FAILED, failed.append, "f")
            wrong = next(each for each in map(a_turn, SESSIONS) if by_shard([each], 2).get(1))
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[wrong]), "0")
            await eventually(lambda: bool(failed))
            assert failed[0].code == "misrouted"
            assert "SYMPHONY_SCHEDULER_SHARDS" in failed[0].message

    asyncio.run(scenario())
