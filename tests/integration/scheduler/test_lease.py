"""The lease in a real store: who leads when the leader is cut off, leaves, or the store goes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.base.children import find_nats_server, free_port, start_child, stop_child
from loadtest.servers import wait_for_port
from services.scheduler.config import SchedulerConfig
from shared.bus import Bus, RawMessage
from shared.lease.lease import Lease
from shared.wire.messages import LeaderLease
from shared.wire.subjects import LEASES
from tests.conftest import Server
from tests.integration.harness import (
    InProcessRuntime,
    connected,
    eventually,
    eventually_answers,
    sever,
)

NEVER_MS = 60_000  # a lease that nobody takes over in a test's time


class Candidate:
    """A lease on a connection of its own, and what it told."""

    def __init__(self, runtime: InProcessRuntime, config: SchedulerConfig) -> None:
        self.told: list[str] = []
        self.bus = runtime.bus
        self.lease = Lease(
            runtime,
            config,
            on_fence=lambda fence: self.told.append(f"fence {fence}"),
            on_suspend=lambda: self.told.append("suspend"),
            on_resume=lambda: self.told.append("resume"),
            on_lost=lambda: self.told.append("lost"),
        )

    async def lead(self) -> int:
        return await asyncio.wait_for(self.lease.lead(), 20)


@asynccontextmanager
async def candidate(url: str, *, ttl_ms: int = 600, mode: str = "auto") -> AsyncIterator[Candidate]:
    """One instance; at the end it leaves in order, as far as its connection allows."""
    config = SchedulerConfig.model_validate(
        {
            "nats_url": url,
            "scheduler_lease": mode,
            "scheduler_lease_beat_ms": 200,
            "scheduler_lease_ttl_ms": ttl_ms,
        }
    )
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(url, "candidate")
        stack.push_async_callback(bus.drain)
        runtime = InProcessRuntime("scheduler", "s", bus, stack)
        stack.push_async_callback(runtime.cancel_tasks)
        here = Candidate(runtime, config)
        yield here
        await here.lease.release(timeout_s=1.0 if bus.connected else 0.01)
        assert not here.lease.is_leading
        assert runtime.failure is None, runtime.failure


async def note(seen: list[str], message: RawMessage) -> None:
    """What somebody does who watches the bus."""
    seen.append(message.reply)


def test_a_spare_leads_when_the_leader_is_cut_off(nats_server: Server) -> None:
    async def scenario() -> None:
        url = nats_server.url
        async with (
            connected(url) as watcher,
            candidate(url, ttl_ms=NEVER_MS) as first,
            candidate(url, ttl_ms=NEVER_MS) as spare,
        ):
            seen: list[str] = []
            await watcher.serve_raw("symphony.>", partial(note, seen), "")
            fence = await first.lead()
            assert first.lease.is_leading
            waiting = asyncio.create_task(spare.lead())
            await eventually(lambda: hears_leader(spare))
            await sever(first.bus)
            assert await waiting > fence
            assert spare.lease.is_leading and not first.lease.is_leading
            assert seen
            await eventually(lambda: first.told == ["suspend"])  # it cannot know more

    asyncio.run(scenario())


def core_of(it: Candidate) -> Any:
    return it.lease._core


def hears_leader(it: Candidate) -> bool:
    """Whether the leader has answered the question of who holds the lease."""
    return bool(core_of(it)._watch._has_answered)


def test_one_that_has_left_does_not_answer_for_the_next(nats_server: Server) -> None:
    async def scenario() -> None:
        url = nats_server.url
        async with (
            candidate(url, ttl_ms=NEVER_MS) as first,
            candidate(url, ttl_ms=NEVER_MS) as second,
            candidate(url, ttl_ms=NEVER_MS) as third,
        ):
            await first.lead()
            waiting = [asyncio.create_task(it.lead()) for it in (second, third)]
            await first.lease.release()
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            leads, waits = (second, third) if second.lease.is_leading else (third, second)
            await eventually(lambda: hears_leader(waits))
            await sever(leads.bus)
            await eventually(lambda: waits.lease.is_leading)
            await asyncio.wait(waiting)

    asyncio.run(scenario())


def test_a_spare_waits_while_the_leader_lives(nats_server: Server) -> None:
    async def scenario() -> None:
        url = nats_server.url
        async with candidate(url) as first, connected(url) as bus:
            fence = await first.lead()
            bucket = await bus.bucket(LEASES)

            async def renewals() -> int:
                lease = (await bucket.get("leader")).value
                assert lease is not None and lease.instance == first.lease.instance
                return lease.beat

            async with candidate(url) as spare:
                waiting = asyncio.create_task(spare.lead())
                await eventually_answers(renewals, lambda num: num >= 6)  # twice the ttl
                assert not waiting.done() and not spare.lease.is_leading
                assert first.lease.is_leading and first.lease.fence == fence
                waiting.cancel()

    asyncio.run(scenario())


def test_a_released_lease_is_taken_without_waiting(nats_server: Server) -> None:
    async def scenario() -> None:
        async with candidate(nats_server.url) as first:
            fence = await first.lead()
            async with candidate(nats_server.url, ttl_ms=NEVER_MS) as spare:
                waiting = asyncio.create_task(spare.lead())
                await eventually(lambda: core_of(spare)._known is not None)
                await first.lease.release()
                assert not first.lease.is_leading
                assert await waiting == fence + 1

    asyncio.run(scenario())


def test_one_leads_again_after_the_store_restarts(nats_server: Server) -> None:
    async def scenario() -> None:
        async with candidate(nats_server.url) as first, candidate(nats_server.url) as spare:
            fence = await first.lead()
            waiting = asyncio.create_task(spare.lead())
            nats_server.kill()
            await eventually(lambda: not first.lease.is_leading)
            nats_server.start()
            await eventually(lambda: first.lease.is_leading or waiting.done())
            if waiting.done():  # it happened to connect so much earlier
                assert waiting.result() > fence
                await eventually(lambda: first.told[-1] == "lost")
            else:  # a server that is alone has forgotten the lease
                assert first.lease.fence > fence
                assert first.told[0] == "suspend" and f"fence {first.lease.fence}" in first.told
            waiting.cancel()

    asyncio.run(scenario())


def test_the_fence_grows_when_the_store_comes_back_empty(nats_server: Server) -> None:
    async def scenario() -> None:
        async with candidate(nats_server.url) as only:
            fence = await only.lead()
            nats_server.kill()
            nats_server.start()
            await eventually(lambda: only.lease.is_leading and only.lease.fence > fence)
            assert f"fence {only.lease.fence}" in only.told

    asyncio.run(scenario())


def test_a_raised_fence_is_stored_and_told(nats_server: Server) -> None:
    async def scenario() -> None:
        url = nats_server.url
        async with candidate(url, ttl_ms=NEVER_MS) as only, connected(url) as bus:
            fence = await only.lead()
            only.lease.raise_fence(fence)  # its own, as workers report it
            only.lease.raise_fence(fence + 10)
            await eventually(lambda: only.told == [f"fence {fence + 11}"])
            assert only.lease.fence == fence + 11 and only.lease.is_leading
            stored = (await (await bus.bucket(LEASES)).get("leader")).value
            assert isinstance(stored, LeaderLease)
            assert (stored.instance, stored.fence) == (only.lease.instance, fence + 11)

    asyncio.run(scenario())


@pytest.fixture
def nats_without_store(tmp_path: Path) -> Iterator[str]:
    """URL of a server without JetStream."""
    port = free_port()
    command = [find_nats_server(), "-a", "127.0.0.1", "-p", str(port)]
    child = start_child(command, log_path=tmp_path / "nats.log")
    wait_for_port(child, port, "nats")
    yield f"nats://127.0.0.1:{port}"
    stop_child(child)


def test_without_a_store_it_leads_alone_and_says_so(
    nats_without_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with candidate(nats_without_store) as only:
            assert await only.lead() == only.lease.fence > 1_500_000_000_000  # ms of our era
            assert only.lease.is_leading

    asyncio.run(scenario())
    assert "leading without a lease" in caplog.text


def test_without_a_lease_the_fence_can_be_raised(nats_server: Server) -> None:
    async def scenario() -> None:
        async with candidate(nats_server.url, mode="off") as only:
            fence = await only.lead()
            only.lease.raise_fence(fence)
            only.lease.raise_fence(fence + 10)
            assert only.lease.fence == fence + 11
            assert only.told == [f"fence {fence + 11}"]

    asyncio.run(scenario())
