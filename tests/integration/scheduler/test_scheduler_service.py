"""The scheduler on a real bus, with fake workers and a fake frontend."""

import asyncio
from dataclasses import replace

from prometheus_client import REGISTRY

from services.scheduler.config import SchedulerConfig
from services.scheduler.core.turns.turn_table import ATTEMPTS_PER_TERM, first_attempt
from services.scheduler.service import main
from shared.bus import Bus
from shared.ids import FrontendId, ModelId, SessionId, TurnId
from shared.wire.messages import (
    SOLE_LEADERSHIP,
    AdvisoryKey,
    Empty,
    ExpectSession,
    LeaderChanged,
    LeadershipFence,
    SchedulerStatus,
    TurnArrived,
    TurnCancel,
    TurnFailed,
    TurnsSubmit,
    TurnSubmit,
)
from shared.wire.subjects import (
    LEADER_CHANGED,
    SCHEDULER_STATUS,
    SESSION_DROP,
    SESSION_EXPECT,
    TURN_ARRIVED,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_SUBMIT,
    WORKER_REPORT,
)
from tests.conftest import Server
from tests.integration.harness import connected, eventually, eventually_answers, running
from tests.integration.scheduler.peers import FakeWorker, fake_worker, ready_report


def config(server: Server, learning_s: float = 0.15) -> SchedulerConfig:
    return SchedulerConfig(
        nats_url=server.url,
        scheduler_learning_s=learning_s,
        scheduler_dead_after_s=5.0,
        scheduler_placement_wait_s=0.2,
    )


def turn(turn_id: str, *, model: str = "m", attempt: int = 1, frontend_id: str = "f") -> TurnSubmit:
    return TurnSubmit(
        turn_id=TurnId(turn_id),
        frontend_id=FrontendId(frontend_id),
        model_id=ModelId(model),
        num_prompt_tokens=10,
        attempt=attempt,
        session_id=SessionId("s"),
    )


async def status(bus: Bus) -> SchedulerStatus:
    return await bus.request(SCHEDULER_STATUS, Empty())


def num_unsent() -> float:
    """Effects that could not be sent, as Prometheus would read them."""
    return REGISTRY.get_sample_value("symphony_scheduler_effects_unsent_total") or 0.0


async def until_known(bus: Bus, *workers: FakeWorker) -> None:
    """Wait until the scheduler has heard from all of these."""
    wanted = {worker.worker_id for worker in workers}
    await eventually_answers(
        lambda: status(bus), lambda state: wanted <= {w.worker_id for w in state.workers}
    )


def test_place_end_cancel_and_fail(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(main, config(nats_server)),
            fake_worker(nats_server.url, "w1") as worker,
        ):
            failed: list[TurnFailed] = []
            arrived: list[TurnArrived] = []
            await bus.subscribe(TURN_FAILED, failed.append, "f")
            await bus.subscribe(TURN_ARRIVED, arrived.append)
            await until_known(bus, worker)
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t1")]), "0")
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t1")]), "0")
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t2")]), "0")
            await eventually(lambda: len(worker.held) == 2 and len(arrived) == 2)
            assert [start.turn_id for start in worker.started] == ["t1", "t2"]
            await worker.end("t1")
            await bus.publish(TURN_CANCEL, TurnCancel(turn_id=TurnId("t2")), "0")
            await eventually(lambda: "t2" in {c.turn_id for c in worker.cancelled})
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t3", model="none")]), "0")
            await eventually(lambda: bool(failed))
            assert (failed[0].turn_id, failed[0].http_status) == ("t3", 503)
            state = await status(bus)
            assert state.num_turns_placed == state.num_turns_waiting == 0

    asyncio.run(scenario())


def test_a_killed_worker_s_turns_move_at_once(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(main, config(nats_server)),
            fake_worker(nats_server.url, "w1") as first,
            fake_worker(nats_server.url, "w2") as second,
        ):
            await until_known(bus, first, second)
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t")]), "0")
            await eventually(lambda: bool(first.held or second.held))
            holder, other = (first, second) if first.held else (second, first)
            killed_at = asyncio.get_running_loop().time()
            await holder.die()
            await eventually(lambda: bool(other.held))
            took_s = asyncio.get_running_loop().time() - killed_at
            assert took_s < 5.0, "the probe finds out long before the silence tells"
            assert other.started[0].attempt == holder.started[0].attempt + 1

    asyncio.run(scenario())


def test_attempts_rise_with_a_fence_that_a_worker_has_seen(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(main, config(nats_server)),
            fake_worker(nats_server.url, "w1") as worker,
        ):
            terms: list[LeaderChanged] = []
            await bus.subscribe(LEADER_CHANGED, terms.append)
            await until_known(bus, worker)
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t1")]), "0")
            await eventually(lambda: "t1" in worker.held)
            first = worker.started[0].attempt
            seen = first // ATTEMPTS_PER_TERM + 1_000
            fences = [LeadershipFence(leadership=SOLE_LEADERSHIP, fence=seen)]
            await bus.publish(WORKER_REPORT, replace(ready_report("w2"), fences=fences))
            await eventually(lambda: any(term.fence > seen for term in terms))
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t2")]), "0")
            await eventually(lambda: "t2" in worker.held)
            assert worker.started[-1].attempt >= first_attempt(seen + 1) > first

    asyncio.run(scenario())


def test_ids_that_can_stand_in_no_subject_end_nothing(nats_server: Server) -> None:
    async def scenario() -> None:
        settings = config(nats_server, learning_s=0.0)
        async with connected(nats_server.url) as bus, running(main, settings):
            before = num_unsent()
            await bus.publish(WORKER_REPORT, ready_report("a.b c", interval_s=0.3))
            await eventually_answers(lambda: status(bus), lambda state: bool(state.workers))
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t1")]), "0")
            unheard = turn("t2", model="none", frontend_id="d.e f")
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[unheard]), "0")
            await eventually(lambda: num_unsent() >= before + 2)
            async with fake_worker(nats_server.url, "w1") as worker:
                await until_known(bus, worker)
                await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t3")]), "0")
                await eventually(lambda: "t3" in worker.held)

    asyncio.run(scenario())


def test_a_restarted_scheduler_adopts_what_runs(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            fake_worker(nats_server.url, "w1") as worker,
        ):
            async with running(main, config(nats_server)):
                await until_known(bus, worker)
                await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t")]), "0")
                await eventually(lambda: bool(worker.held))
            attempt = worker.started[0].attempt
            async with running(main, config(nats_server)):
                await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t", attempt=attempt)]), "0")
                await until_known(bus, worker)
                assert (await status(bus)).num_turns_placed == 1
                await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t2")]), "0")
                await eventually(lambda: "t2" in worker.held)
                assert [start.turn_id for start in worker.started] == ["t", "t2"]
                assert worker.started[1].attempt > attempt

    asyncio.run(scenario())


def test_an_expected_session_is_prefetched_and_dropped(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(main, config(nats_server)),
            fake_worker(nats_server.url, "w1") as worker,
        ):
            await until_known(bus, worker)
            expect = ExpectSession(session_id=SessionId("s"), model_id=ModelId("m"))
            assert (await bus.request(SESSION_EXPECT, expect, "0")).worker_id == "w1"
            await eventually(lambda: [p.session_id for p in worker.prefetched] == ["s"])
            assert (await status(bus)).num_reservations == 1
            await bus.request(SESSION_DROP, AdvisoryKey(session_id=SessionId("s")), "0")
            await eventually_answers(lambda: status(bus), lambda state: not state.num_reservations)

    asyncio.run(scenario())


def test_nats_may_go_and_come_back(nats_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connected(nats_server.url) as bus,
            running(main, config(nats_server)) as runtime,
            fake_worker(nats_server.url, "w1") as worker,
        ):
            await until_known(bus, worker)
            back = [asyncio.Event() for _ in range(3)]
            for event, each in zip(back, (bus, runtime.bus, worker.bus), strict=True):
                each.on_reconnect(event.set)
            nats_server.kill()
            nats_server.start()
            await asyncio.gather(*(event.wait() for event in back))
            await bus.flush()
            await runtime.bus.flush()
            await bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[turn("t")]), "0")
            await eventually(lambda: "t" in worker.held)

    asyncio.run(scenario())
