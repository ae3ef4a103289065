"""The bus over a real NATS server."""

import asyncio
import logging

import pytest

from cli.base.children import free_port
from shared.bus import Bus, RawMessage
from shared.errors import (
    MalformedMessage,
    NobodyListens,
    NotFound,
    PeerUnavailable,
    SymphonyError,
)
from shared.ids import SessionId, TurnId
from shared.wire import messages as m
from shared.wire.subjects import ADVISORY_GET, WORKER_CANCEL, WORKER_PING
from tests.conftest import Server


def test_request_reply_error_and_absence(nats_server: Server) -> None:
    async def scenario() -> None:
        server = await Bus.connect(nats_server.url, "server")
        client = await Bus.connect(nats_server.url, "client")

        async def get(key: m.AdvisoryKey) -> m.AdvisoryState:
            if key.session_id == "gone":
                raise NotFound("no such advisory", param="session_id")
            return m.AdvisoryState(session_id=key.session_id, state="placed")

        await server.serve(ADVISORY_GET, get)
        state = await client.request(ADVISORY_GET, m.AdvisoryKey(session_id=SessionId("s")))
        assert state.state == "placed"
        with pytest.raises(NotFound, match="no such advisory") as caught:
            await client.request(ADVISORY_GET, m.AdvisoryKey(session_id=SessionId("gone")))
        assert caught.value.param == "session_id"
        with pytest.raises(NobodyListens, match="no process serves"):
            await client.request(WORKER_PING, m.Empty(), "w1", grace_s=0.1)
        assert not await client.has_responder(WORKER_PING, m.Empty(), "w1")
        await client.drain()
        await server.drain()

    asyncio.run(scenario())


def test_messages_flow_again_after_nats_restarts(nats_server: Server) -> None:
    async def scenario() -> None:
        a = await Bus.connect(nats_server.url, "a")
        b = await Bus.connect(nats_server.url, "b")
        heard: asyncio.Queue[m.TurnCancel] = asyncio.Queue()
        await a.subscribe(WORKER_CANCEL, heard.put_nowait, "w1")
        back = [asyncio.Event(), asyncio.Event()]
        a.on_reconnect(back[0].set)
        b.on_reconnect(back[1].set)
        nats_server.kill()
        nats_server.start()
        await asyncio.gather(*(event.wait() for event in back))
        await a.flush()
        await b.publish(WORKER_CANCEL, m.TurnCancel(turn_id=TurnId("t")), "w1")
        assert (await asyncio.wait_for(heard.get(), 5)).turn_id == "t"
        await a.drain()
        await b.drain()

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_waited_for_as_long_as_asked_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = f"nats://me:secret@127.0.0.1:{free_port()}"
    with pytest.raises(PeerUnavailable) as caught:
        asyncio.run(Bus.connect(url, "a", timeout_s=0.5))  # about five attempts
    assert "within 0.5 s: Connection refused" in caught.value.message
    lines = [record for record in caplog.records if record.message == "nats error"]
    assert len(lines) == 1
    assert "secret" not in f"{caught.value.message} {lines[0].__dict__}"


def test_a_server_that_comes_late_is_reported(
    nats_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        nats_server.kill()
        failed = asyncio.Event()
        handler = logging.Handler()
        handler.emit = lambda record: failed.set()  # type: ignore[method-assign]
        logging.getLogger("shared.bus").addHandler(handler)
        connecting = asyncio.create_task(Bus.connect(nats_server.url, "a", timeout_s=None))
        await failed.wait()
        logging.getLogger("shared.bus").removeHandler(handler)
        nats_server.start()
        await (await connecting).drain()

    with caplog.at_level(logging.INFO, "shared.bus"):
        asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["nats error", "nats connected"]


def test_what_a_handler_raises_is_rejected_or_ends_the_process_but_is_never_swallowed(
    nats_server: Server,
) -> None:
    async def scenario() -> None:
        bus = await Bus.connect(nats_server.url, "a")
        ended: asyncio.Queue[str] = asyncio.Queue()
        heard: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: ended.put_nowait(str(context["exception"])))

        def handler(cancel: m.TurnCancel) -> None:
            if cancel.turn_id == "bad":
                raise MalformedMessage("no such page")
            if cancel.turn_id == "bug":
                raise KeyError("bug")
            heard.put_nowait(cancel.turn_id)

        await bus.subscribe(WORKER_CANCEL, handler, "w1")
        for name in ("bad", "bug", "good"):
            await bus.publish(WORKER_CANCEL, m.TurnCancel(turn_id=TurnId(name)), "w1")
        assert await asyncio.wait_for(heard.get(), 5) == "good"
        assert await asyncio.wait_for(ended.get(), 5) == "'bug'"
        assert ended.empty() and heard.empty()
        await bus.drain()

    asyncio.run(scenario())


def test_an_answer_that_cannot_be_encoded_is_an_error_of_its_caller(nats_server: Server) -> None:
    async def scenario() -> None:
        bus = await Bus.connect(nats_server.url, "a")

        async def get(key: m.AdvisoryKey) -> m.AdvisoryState:
            return m.AdvisoryState(session_id=key.session_id, state="placed", num_merged=2**70)

        await bus.serve(ADVISORY_GET, get)
        for _ in range(2):
            with pytest.raises(SymphonyError, match="cannot be encoded"):
                await bus.request(ADVISORY_GET, m.AdvisoryKey(session_id=SessionId("s")))
        await bus.drain()

    asyncio.run(scenario())


def test_a_raw_handler_that_fails_costs_its_own_message_only(nats_server: Server) -> None:
    async def scenario() -> None:
        bus = await Bus.connect(nats_server.url, "a")
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        async def handle(message: RawMessage) -> None:
            if message.payload == b"bad":
                raise ZeroDivisionError("1/0")
            heard.put_nowait(message.payload)

        ended: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: ended.append(context))
        await bus.serve_raw("anything", handle, "q")
        await bus.publish_raw("anything", b"bad")
        await bus.publish_raw("anything", b"good")
        assert await asyncio.wait_for(heard.get(), 5) == b"good"
        await bus.drain()
        assert ended == []

    asyncio.run(scenario())


def test_who_finds_no_room_while_nats_is_away_waits_for_it(nats_server: Server) -> None:
    async def scenario() -> None:
        bus = await Bus.connect(nats_server.url, "a")
        away = asyncio.Event()
        bus.on_disconnect(away.set)
        nats_server.kill()
        await asyncio.wait_for(away.wait(), 20)
        sending = [
            asyncio.create_task(bus.publish_raw("anything", bytes(500_000))) for _ in range(12)
        ]
        done, waiting = await asyncio.wait(sending, timeout=0.2)
        assert done and waiting, "six megabytes do not fit the buffer"
        nats_server.start()
        await asyncio.wait_for(asyncio.gather(*sending), 20)
        await bus.drain()

    asyncio.run(scenario())
