"""Work that nobody waits for."""

import asyncio
from typing import Any

from shared.tasks import Tasks


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
