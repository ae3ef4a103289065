"""The socket between a worker and its vLLM's processes."""

import asyncio
import socket
import stat
import threading
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
def test_connectors_that_do_not_come_are_counted(ranks: list[int], word: str) -> None:
    listener = Listener()
    connections = [connect(listener, rank)[1] for rank in ranks]
    with pytest.raises(ConfigError, match=word):
        listener.accept(0.1)
    listener.close()
    for heard in connections:
        assert heard.get(timeout=TIMEOUT_S) is None


def test_those_that_came_are_kept_while_vllm_compiles() -> None:
    listener = Listener()
    _, heard = connect(listener, 0, page_bytes=8)
    for _ in range(3):
        with pytest.raises(ConfigError, match="1 of 2"):
            listener.accept(0.05)
    connect(listener, m.SCHEDULER)
    scheduler, rank = listener.accept()
    assert (scheduler.rank, rank.registered.page_bytes) == (m.SCHEDULER, 8) and heard.empty()
    listener.close()
    scheduler.close()
    rank.close()


def test_a_vllm_that_ends_while_it_starts_leaves_its_place_to_the_next() -> None:
    listener = Listener()
    for rank in range(2):
        connection, heard = connect(listener, rank, num_ranks=2)
        with pytest.raises(ConfigError, match="of 3"):
            listener.accept(0.1)
        connection.close()
        assert heard.get(timeout=TIMEOUT_S) is None
    connect(listener, 0, page_bytes=7)
    connect(listener, m.SCHEDULER)
    scheduler, first = listener.accept()
    assert (scheduler.rank, first.registered.page_bytes) == (m.SCHEDULER, 7)
    listener.close()
    scheduler.close()
    first.close()


def test_a_connection_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "REGISTER_S", 0.05)
    listener = Listener()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(listener.path)
        with pytest.raises(ConfigError, match="0 of 2"):
            listener.accept(0.1)
    listener.close()


def test_a_path_is_used_again_and_is_this_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    Listener(path)._socket.close()  # as by a process that died
    listener = Listener(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listener.close()
    assert not path.exists()


def test_what_a_connector_does_not_understand_ends_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as worker:
        worker.bind(str(tmp_path / "socket"))
        worker.listen()
        heard: Queue[object] = Queue()
        before = set(threading.enumerate())
        Connection(str(tmp_path / "socket"), heard.put, lambda: heard.put(None))
        threads = set(threading.enumerate()) - before
        accepted, _ = worker.accept()
        with accepted:
            accepted.sendall(frame({"kind": "nonsense"}))
            assert heard.get(timeout=TIMEOUT_S) is None
        for thread in threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
    assert len(threads) == 2 and "was not understood" in caplog.text


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
