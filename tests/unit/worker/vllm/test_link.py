"""The socket between a worker and its vLLM's processes."""

import asyncio
import socket
from pathlib import Path
from queue import Queue

import pytest

from services.worker.core.vllm import messages as m
from services.worker.vllm import link
from services.worker.vllm.link import Connection, Listener, Peer, flaw_of, frame
from shared.errors import ConfigError, MalformedMessage

TIMEOUT_S = 10


def connect(listener: Listener, rank: int, **more: object) -> tuple[Connection, "Queue[object]"]:
    """A connector's end; what it hears, and None when the worker is gone."""
    heard: Queue[object] = Queue()
    connection = Connection(listener.path, heard.put, lambda: heard.put(None))
    connection.send(m.Registered(rank=rank, **more))  # type: ignore[arg-type]
    return connection, heard


def test_messages_go_both_ways_in_order_until_one_side_is_gone() -> None:
    listener = Listener()
    _, others = connect(listener, 0, page_bytes=8)
    first, heard = connect(listener, m.SCHEDULER)
    peers = listener.accept()
    listener.close()
    assert [peer.rank for peer in peers] == [m.SCHEDULER, 0]
    assert peers[1].registered.page_bytes == 8 and not Path(listener.path).exists()
    said: list[tuple[int, object]] = []
    sent = [m.Leased(epoch=at, pages="") for at in range(100)]

    async def scenario() -> None:
        for message in sent[:50]:
            peers[0].send(message)  # before the loop reads
        reading = asyncio.ensure_future(
            peers[0].read(lambda peer, message: said.append((peer.rank, message)))
        )
        await asyncio.sleep(0)
        for message in sent[50:]:
            peers[0].send(message)
        first.send(m.TicketUsed(name="a"))
        first.send(m.LeaseWanted(epoch=1, num_blocks=2))
        for message in sent:
            assert await asyncio.to_thread(heard.get, timeout=TIMEOUT_S) == message
        first.close()
        await asyncio.wait_for(reading, TIMEOUT_S)

    asyncio.run(scenario())
    assert said == [
        (m.SCHEDULER, m.TicketUsed(name="a")),
        (m.SCHEDULER, m.LeaseWanted(epoch=1, num_blocks=2)),
    ]
    assert heard.get(timeout=TIMEOUT_S) is None
    peers[1].close()
    assert others.get(timeout=TIMEOUT_S) is None, "the worker is gone"


def test_what_is_no_message_ends_the_connection() -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(ours, m.Registered(rank=0))

    async def scenario() -> None:
        ours.setblocking(False)
        theirs.sendall(frame({"kind": "nonsense"}))
        with pytest.raises(MalformedMessage):
            await asyncio.wait_for(peer.read(lambda *_: None), TIMEOUT_S)

    asyncio.run(scenario())
    theirs.close()


def test_a_message_that_is_too_long_is_none() -> None:
    with pytest.raises(MalformedMessage, match="bytes"):
        link._length(link.LENGTH.pack(link.MESSAGE_BYTES_MAX + 1))


@pytest.mark.parametrize(("ranks", "word"), [([], "0 of 2"), ([0], "1 of 2")])
def test_connectors_that_do_not_come_are_counted(
    monkeypatch: pytest.MonkeyPatch, ranks: list[int], word: str
) -> None:
    monkeypatch.setattr(link, "REGISTER_PATIENCE_S", 0.2)
    listener = Listener()
    connections = [connect(listener, rank)[1] for rank in ranks]
    with pytest.raises(ConfigError, match=word):
        listener.accept(0.2)
    listener.close()
    for heard in connections:
        assert heard.get(timeout=TIMEOUT_S) is None


def test_a_cache_of_which_nothing_can_be_kept_is_said() -> None:
    listener = Listener()
    for rank, error in ((m.SCHEDULER, ""), (0, "odd")):
        connect(listener, rank, error=error)
    peers = listener.accept()
    listener.close()
    assert flaw_of(peers) == "odd" and not flaw_of(peers[:1])
    for peer in peers:
        peer.close()


def test_a_connection_that_ends_before_it_says_who_it_is_is_an_error() -> None:
    listener = Listener()
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(listener.path)
    stranger.close()
    with pytest.raises(ConfigError, match="ended"):
        listener.accept()
    listener.close()
