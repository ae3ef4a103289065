"""What a connection remembers of why it failed."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from shared.bus import Bus

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


def test_a_connection_that_is_away_is_not_steady() -> None:
    async def scenario() -> None:
        bus = Bus(Client())
        assert bus.steady_for_s == 0
        await bus._on_reconnected()
        assert 0 <= bus.steady_for_s < 60
        await bus._on_disconnected()
        assert bus.steady_for_s == 0

    asyncio.run(scenario())
