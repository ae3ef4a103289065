"""The outbox: in order, bounded, and what it drops is counted."""

import asyncio
from functools import partial

from services.frontend.observability import telemetry
from services.frontend.turns.outbox import Outbox, Submits
from shared.errors import PeerUnavailable
from tests.counters import value_of


def num_unsent(kind: str) -> float:
    return value_of(telemetry.UNSENT.labels(kind))


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


def test_submits_go_together_behind_what_was_before_them_and_before_their_cancels() -> None:
    async def scenario() -> None:
        sent: list[object] = []

        async def publish(message: object) -> None:
            sent.append(message)

        outbox = Outbox(8)
        submits = Submits[str](outbox, publish, num_max=3)
        before = num_unsent("submit")
        outbox.put("cancel", partial(publish, "-x"))
        submits.put("a")
        outbox.put("cancel", partial(publish, "-a"))
        for name in "bcd":
            submits.put(name)
        assert num_unsent("submit") == before + 1
        task = asyncio.create_task(outbox.run())
        await outbox.flush(patience_s=60)
        submits.put("e")
        await outbox.flush(patience_s=60)
        assert sent == ["-x", ["a", "b", "c"], "-a", ["e"]]
        task.cancel()

    asyncio.run(scenario())


def test_a_submit_for_which_the_outbox_has_no_room_holds_up_no_later_one() -> None:
    async def scenario() -> None:
        sent: list[object] = []

        async def publish(message: object) -> None:
            sent.append(message)

        outbox = Outbox(1)
        submits = Submits[str](outbox, publish, num_max=3)
        outbox.put("submit", partial(publish, "other"))
        submits.put("lost")
        task = asyncio.create_task(outbox.run())
        await outbox.flush(patience_s=60)
        submits.put("sent")
        await outbox.flush(patience_s=60)
        assert sent == ["other", ["sent"]]
        task.cancel()

    asyncio.run(scenario())
