"""The outbox: in order, bounded, and what it drops is counted."""

import asyncio
from functools import partial

from services.frontend import telemetry
from services.frontend.outbox import Outbox
from shared.errors import PeerUnavailable


def num_unsent(kind: str) -> float:
    value: float = telemetry.UNSENT.labels(kind)._value.get()
    return value


def test_the_newest_submits_are_dropped_when_it_is_full_and_cancels_have_room() -> None:
    async def scenario() -> None:
        sent: list[str] = []

        async def publish(message: str) -> None:
            sent.append(message)

        outbox = Outbox(2)
        submits, cancels = num_unsent("submit"), num_unsent("cancel")
        for name in "abc":
            outbox.put("submit", partial(publish, f"+{name}"))
        for name in "abc":
            outbox.put("cancel", partial(publish, f"-{name}"))
        assert (num_unsent("submit") - submits, num_unsent("cancel") - cancels) == (1, 1)
        task = asyncio.create_task(outbox.run())
        await outbox.flush(patience_s=60)
        assert sent == ["+a", "+b", "-a", "-b"]
        outbox.put("submit", partial(publish, "+c"))
        await outbox.flush(patience_s=60)
        assert sent[-1] == "+c"
        task.cancel()

    asyncio.run(scenario())


def test_what_the_bus_does_not_take_stops_nothing() -> None:
    async def scenario() -> None:
        sent: list[str] = []

        async def publish(message: str) -> None:
            if message == "lost":
                raise PeerUnavailable("away")
            sent.append(message)

        outbox = Outbox(2)
        task = asyncio.create_task(outbox.run())
        outbox.put("submit", partial(publish, "lost"))
        outbox.put("submit", partial(publish, "sent"))
        await outbox.flush(patience_s=60)
        assert sent == ["sent"]
        task.cancel()

    asyncio.run(scenario())


def test_a_stop_does_not_wait_for_ever() -> None:
    async def scenario() -> None:
        async def publish(message: str) -> None:
            raise AssertionError(message)

        outbox = Outbox(2)
        outbox.put("submit", partial(publish, "stuck"))
        await outbox.flush(patience_s=0)

    asyncio.run(scenario())
