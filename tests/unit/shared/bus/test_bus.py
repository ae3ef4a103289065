"""What a connection remembers of why it failed."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from shared.bus import Bus
from shared.errors import PeerUnavailable

REFUSED = NatsError("nats: 'Authorization Violation'")
CLOSED = ConnectionResetError(104, "Connection reset by peer")
NOBODY = ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    ("errors", "word"),
    [
        ([REFUSED, CLOSED], "Authorization"),  # the same refusal, of which the word was lost
        ([CLOSED, REFUSED], "Authorization"),
        ([CLOSED], "reset"),
        ([REFUSED, NOBODY], "refused"),
        ([REFUSED, NOBODY, CLOSED], "reset"),
    ],
)
def test_the_server_s_own_word_tells_why(errors: list[Exception], word: str) -> None:
    async def scenario() -> str:
        bus = Bus(Client())
        for error in errors:
            await bus._on_error(error)
        return bus._last_reason

    assert word in asyncio.run(scenario())


@pytest.mark.parametrize("num_swallowed", [0, 1, 3])
def test_a_client_that_swallows_a_cancellation_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, num_swallowed: int
) -> None:
    """As nats-py's does where the time is up while it closes a connection that was refused."""
    swallowed: list[str] = []

    async def goes_on(*_: object, **__: object) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if len(swallowed) == num_swallowed:
                    raise
                swallowed.append("one")

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(Client, "connect", goes_on)
    monkeypatch.setattr(Client, "close", nothing)

    async def scenario() -> None:
        with pytest.raises(PeerUnavailable, match=r"within 0\.01 s"):
            await Bus.connect("nats://nowhere", "me", timeout_s=0.01)

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert len(swallowed) == num_swallowed


def test_a_connection_that_is_away_is_not_steady() -> None:
    async def scenario() -> None:
        bus = Bus(Client())
        assert bus.steady_for_s == 0
        await bus._on_reconnected()
        assert 0 <= bus.steady_for_s < 60
        await bus._on_disconnected()
        assert bus.steady_for_s == 0

    asyncio.run(scenario())
