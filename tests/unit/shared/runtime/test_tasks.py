"""Work that nobody waits for."""

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client

from shared.bus import Bus
from shared.runtime.tasks import Tasks, wait_set
from shared.wire.messages import Empty
from shared.wire.subjects import SCHEDULER_STATUS


def test_what_breaks_is_told_to_the_loop() -> None:
    told: list[dict[str, Any]] = []

    async def broken() -> None:
        raise ValueError("no")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        tasks = Tasks("it broke")
        tasks.spawn(broken())
        await tasks.wait(5.0)
        await asyncio.sleep(0)  # callbacks of the task

    asyncio.run(scenario())
    assert [(context["message"], str(context["exception"])) for context in told] == [
        ("it broke", "no")
    ]


def test_what_is_cancelled_is_no_failure() -> None:
    told: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        tasks = Tasks("it broke")
        tasks.spawn(asyncio.sleep(3600))
        tasks.cancel()
        await tasks.wait(5.0)
        await tasks.wait(5.0)  # nothing is left: returns at once

    asyncio.run(scenario())
    assert told == []


@pytest.mark.parametrize("num_passes", range(6))
def test_a_cancellation_in_the_instant_of_the_event_ends_a_loop(num_passes: int) -> None:
    async def scenario() -> None:
        event = asyncio.Event()

        async def loop() -> None:
            while True:
                await wait_set(event, 3600)
                event.clear()

        task = asyncio.create_task(loop())
        await asyncio.sleep(0)
        event.set()
        for _ in range(num_passes):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()

    asyncio.run(scenario())


def test_an_event_that_does_not_come_is_told() -> None:
    async def scenario() -> None:
        event = asyncio.Event()
        assert not await wait_set(event, 0.001)
        event.set()
        assert await wait_set(event, 3600)

    asyncio.run(scenario())


class Deaf(Client):
    """A client's library that keeps a cancellation for itself, as an answer came with it."""

    async def request(self, *_: Any, **__: Any) -> Any:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise TimeoutError from None


@pytest.mark.parametrize("is_probe", [False, True])
def test_a_loop_of_requests_ends_although_the_library_kept_the_cancellation(is_probe: bool) -> None:
    async def scenario() -> None:
        bus = Bus(Deaf())

        async def loop() -> None:
            while True:
                if is_probe:
                    await bus.has_responder(SCHEDULER_STATUS, Empty())
                else:
                    await bus.request(SCHEDULER_STATUS, Empty())

        task = asyncio.create_task(loop())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()

    asyncio.run(scenario())
