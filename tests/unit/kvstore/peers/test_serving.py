"""What a server does for peers that are slow, urgent, or late, and for a store that changes."""

import heapq
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import lmdb
import numpy as np
import pytest

from services.kvstore.core import LoadOutcome
from services.kvstore.peers import precedence as precedence_module
from services.kvstore.peers import serving as serving_module
from services.kvstore.peers.pace import SAVED_S, Pace
from services.kvstore.peers.peer_limits import CLIENT_STALL_S, CONNECTIONS_MAX
from services.kvstore.peers.precedence import Precedence
from services.kvstore.peers.sources import ArenaPage, DiskSource
from services.kvstore.peers.wire import (
    ANSWER_BYTES,
    KEYS_MAX,
    Answer,
    Request,
    Status,
    pack_request,
    unpack_answer,
)
from services.kvstore.tiers.disk import DiskDamaged, Reader, StoredPage
from services.kvstore.tiers.disk.readers import Readers
from services.kvstore.tiers.values import HEADER_BYTES, ValueHeader, unpack_header
from shared.arena import checksum
from shared.blocks import BlockKey
from shared.wire.urgency import DEMAND_PRIORITY
from tests.unit.kvstore.peers.hosts import (
    LONG_S,
    LOST,
    THERE,
    Receiver,
    Sender,
    fetching,
    greeted,
    key,
    must_not,
    serving,
    take,
)

READY, MISSING, FAILED = LoadOutcome.READY, LoadOutcome.MISSING, LoadOutcome.FAILED
MS = 1_000_000
PAGE_BYTES = 300_000
MUCH = Request(1, 0, PAGE_BYTES, 0, 60_000, [key(1)] * KEYS_MAX)  # 19 MB: no socket takes that


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    sender = Sender(tmp_path / "kv", blocks=2, layers=2, page_bytes=PAGE_BYTES)
    yield sender
    sender.disk.close()


def _hear_all(sock: socket.socket, num_pages: int) -> list[tuple[Answer, list[bytes]]]:
    """Answers for so many pages, and the values that followed them."""
    answers = []
    while num_pages:
        answer = unpack_answer(take(sock, ANSWER_BYTES))
        num_values = answer.count if answer.status in {Status.PAGE, Status.JUDGED} else 0
        answers.append((answer, [take(sock, 512 + PAGE_BYTES) for _ in range(num_values)]))
        num_pages -= answer.count
    return answers


def test_a_slow_peer_holds_up_nobody_and_is_cut_off(sender: Sender, tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "arena", 2, PAGE_BYTES)
    with (
        serving(sender.disk, stall_s=0.05) as server,
        greeted(server) as slow,
        fetching(server.address, receiver) as client,
    ):
        slow.sendall(pack_request(MUCH))
        client.submit([receiver.reads(0, [1, 2], 0)], LONG_S)
        assert receiver.outcomes() == [[READY, READY]]
        poll = select.poll()
        poll.register(slow, 0)  # reports only its end: nothing of what waits is read
        assert poll.poll(LONG_S * 1e3)
        assert server.counts.num_cut_off >= 1


def test_a_slow_peer_does_not_keep_the_database(sender: Sender) -> None:
    with serving(sender.disk, stall_s=LONG_S) as server, greeted(server) as slow:
        slow.sendall(pack_request(MUCH))
        answer = unpack_answer(take(slow, ANSWER_BYTES))
        assert answer.status is Status.PAGE
        wanted = sender.value(1, 0)
        sender.disk.reset()  # waits for snapshots
        values = [take(slow, len(wanted)) for _ in range(answer.count)]
        answers = _hear_all(slow, KEYS_MAX - answer.count)
    assert answers[-1][0].status is Status.MISSING
    values += [value for _, each in answers for value in each]
    assert 0 < len(values) < KEYS_MAX
    assert set(values) == {wanted}


def test_the_most_urgent_request_is_answered_first(sender: Sender) -> None:
    """Then layer by layer, whichever asked first."""
    hint, high = MUCH, Request(2, 1, PAGE_BYTES, DEMAND_PRIORITY, 60_000, [key(1)] * 3)
    low = Request(3, 0, PAGE_BYTES, DEMAND_PRIORITY, 60_000, [key(2)] * 3)
    with serving(sender.disk) as server, greeted(server) as sock:
        sock.sendall(b"".join(map(pack_request, (hint, high, low))))
        answers = _hear_all(sock, KEYS_MAX + 6)
    numbers = [answer.number for answer, _ in answers for _ in range(answer.count)]
    assert numbers == [3] * 3 + [2] * 3 + [1] * KEYS_MAX
    at = 0
    for answer, values in answers[-3:]:
        at = answer.first
        keys = [unpack_header(value[:HEADER_BYTES]).key for value in values]
        assert keys == [key(1)] * answer.count
    assert at + answers[-1][0].count == KEYS_MAX


def test_what_is_asked_for_later_may_go_first(sender: Sender) -> None:
    urgent = Request(2, 1, PAGE_BYTES, DEMAND_PRIORITY, 60_000, [key(2)])
    with serving(sender.disk, stall_s=LONG_S) as server, greeted(server) as sock:
        sock.sendall(pack_request(MUCH))
        first = unpack_answer(take(sock, ANSWER_BYTES))
        sock.sendall(pack_request(urgent))
        take(sock, first.count * (512 + PAGE_BYTES))
        answers = _hear_all(sock, KEYS_MAX - first.count + 1)
    assert 2 in [answer.number for answer, _ in answers[:-1]]


def test_what_is_urgent_on_one_connection_goes_before_what_is_not_on_another(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same host: another one's hints have their part of the link."""
    kinds: SimpleQueue[int] = SimpleQueue()
    wait = Precedence.wait

    def waiting(self: Precedence, kind: int) -> None:
        kinds.put(kind)
        wait(self, kind)

    monkeypatch.setattr(Precedence, "wait", waiting)
    monkeypatch.setattr(precedence_module, "WAIT_S", LONG_S)
    urgent, hint = replace(MUCH, priority=DEMAND_PRIORITY), replace(MUCH, keys=[key(1)])
    with (
        serving(sender.disk) as server,
        greeted(server) as first,
        greeted(server) as second,
        greeted(server, host_id="another") as other,
    ):
        first.sendall(pack_request(urgent))
        answer = unpack_answer(take(first, ANSWER_BYTES))
        for sock in (second, other):
            sock.sendall(pack_request(hint))
        _hear_all(other, 1)
        assert kinds.get(timeout=LONG_S) == 2
        assert not select.select([second], [], [], 0)[0]
        take(first, answer.count * (512 + PAGE_BYTES))
        _hear_all(first, KEYS_MAX - answer.count)
        _hear_all(second, 1)


def test_what_is_urgent_and_not_taken_does_not_hold_up_the_rest(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence_module, "WAIT_S", 0.001)
    urgent = replace(MUCH, priority=DEMAND_PRIORITY)
    with serving(sender.disk) as server, greeted(server) as first, greeted(server) as second:
        first.sendall(pack_request(urgent))
        take(first, ANSWER_BYTES)
        second.sendall(pack_request(MUCH))
        _hear_all(second, KEYS_MAX)


def test_a_request_whose_time_is_over_is_not_sent(sender: Sender) -> None:
    late = Request(7, 0, PAGE_BYTES, 0, 0, [key(1), key(9), key(2)])
    with serving(sender.disk) as server, greeted(server) as sock:
        sock.sendall(pack_request(late))
        assert _hear_all(sock, 3) == [(Answer(7, 0, 3, Status.LATE), [])]
        assert server.counts.num_pages_late == 3


@pytest.mark.parametrize(
    ("error", "outcomes", "num_damaged"),
    [
        (lmdb.Error("Input/output error"), [[READY, FAILED], [READY]], 0),
        (lmdb.CorruptedError("made up"), [[READY, FAILED], [FAILED]], 2),
    ],
)
def test_a_read_that_fails_says_nothing_of_the_page(
    sender: Sender,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: lmdb.Error,
    outcomes: list[list[LoadOutcome]],
    num_damaged: int,
) -> None:
    find = Reader.page
    errors = [None, error]

    def failing(self: Reader, key_: BlockKey, layer: int) -> StoredPage | None:
        if errors and (error := errors.pop(0)) is not None:
            raise error
        return find(self, key_, layer)

    monkeypatch.setattr(Reader, "page", failing)
    monkeypatch.setattr(serving_module, "RUN_BYTES", 1)  # a page a run
    damages: list[DiskDamaged] = []
    receiver = Receiver(tmp_path / "arena", 3, PAGE_BYTES)
    with (
        serving(DiskSource(sender.disk, damages.append)) as server,
        fetching(server.address, receiver) as client,
    ):
        client.submit([receiver.reads(0, [1, 2], 0), receiver.reads(1, [2], 2)], LONG_S)
        assert receiver.outcomes() == outcomes
        assert server.counts.num_pages_unread == sum(each.count(FAILED) for each in outcomes)
        assert client.counts.num_connections == 1
    assert [error.life for error in damages] == [1] * num_damaged


def test_pages_that_are_not_on_disk_come_from_the_arena(sender: Sender, tmp_path: Path) -> None:
    """Unless they have become something else while they were sent."""
    receiver = Receiver(tmp_path / "arena", 4, PAGE_BYTES)
    pages = np.random.default_rng(3).integers(0, 256, (2, PAGE_BYTES), np.uint8)

    def find(key_: BlockKey, layer: int) -> ArenaPage | None:
        if key_ not in (key(7), key(8)):
            return None
        is_kept, page = key_ == key(7), pages[key_[0] - 7]
        header = ValueHeader(
            key_, key(1), bytes(16), layer, 2, PAGE_BYTES, 5, [1, 2, 3], checksum(page.data)
        )
        return ArenaPage(page, header, lambda: is_kept)

    with (
        serving(DiskSource(sender.disk, must_not, find)) as server,
        fetching(server.address, receiver) as client,
    ):
        client.submit([receiver.reads(0, [1, 7, 8, 2], 0)], LONG_S)
        results = receiver.reports.get(timeout=LONG_S)
        assert results[0].outcomes == [READY, READY, MISSING, READY]
        assert server.counts.num_pages_void == 1
        assert client.counts.num_corrupt == 0
    header = results[0].headers[1]
    assert header is not None and header.tokens == [1, 2, 3] and header.parent == key(1)
    assert np.array_equal(receiver.arena.pages[1], pages[0])
    assert [receiver.arena.word(page) for page in range(4)] == [THERE, THERE, LOST, THERE]


def test_a_budget_holds_back_what_comes_next() -> None:
    pace = Pace(1000.0)
    assert pace.spend(500, now_ns=10000 * MS) == pytest.approx(0.5 - SAVED_S)
    assert pace.spend(100, now_ns=10200 * MS) == pytest.approx(0.4 - SAVED_S)
    assert pace.spend(100, now_ns=99000 * MS) == pytest.approx(0.1 - SAVED_S)
    assert pace.most_at_once(1 << 20, now_ns=99200 * MS) == 100
    assert Pace(None).spend(1 << 60) == 0
    assert Pace(None).most_at_once(1 << 20) == 1 << 20


def test_no_pause_looks_like_a_stall_however_many_share_a_budget() -> None:
    """In a time of its own: each sends what it may, then pauses as it must."""
    pace, now_ns, num_bytes = Pace(1e9), 100_000 * MS, 0
    wakes = [(now_ns, number) for number in range(CONNECTIONS_MAX)]
    while now_ns < 110_000 * MS:
        now_ns, number = heapq.heappop(wakes)
        sent = max(pace.most_at_once(1 << 30, now_ns), PAGE_BYTES)
        pause_s = pace.spend(sent, now_ns)
        assert pause_s < CLIENT_STALL_S * 0.6
        heapq.heappush(wakes, (now_ns + int(pause_s * 1e9), number))
        num_bytes += sent
    assert num_bytes == pytest.approx(10e9, rel=0.1)


def test_under_a_budget_little_is_sent_at_a_time(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: SimpleQueue[int] = SimpleQueue()

    def spend(self: Pace, num_bytes: int) -> float:
        spent.put(num_bytes)
        return 0.0

    monkeypatch.setattr(Pace, "spend", spend)
    receiver = Receiver(tmp_path / "arena", 2, PAGE_BYTES)
    with (
        serving(sender.disk, bytes_per_s=1e6) as server,
        fetching(server.address, receiver) as client,
    ):
        client.submit([receiver.reads(0, [1, 2], 0)], LONG_S)
        assert receiver.outcomes() == [[READY, READY]]
        counted = [spent.get(timeout=LONG_S) for _ in range(2)]  # before the server stops
    assert counted == [512 + PAGE_BYTES] * 2 and spent.empty()


def test_readers_share_and_who_replaces_is_alone() -> None:
    readers = Readers()
    begun, ends, replaced = threading.Barrier(3), threading.Event(), threading.Event()
    saw: list[bool] = []

    def read() -> None:
        with readers.reading():
            begun.wait(LONG_S)  # all at the same time
            assert ends.wait(LONG_S)
            saw.append(replaced.is_set())

    def replace() -> None:
        with readers.replacing():
            replaced.set()
            late.start()
            late.join(0.01)
            assert late.is_alive()

    def read_late() -> None:
        with readers.reading():
            saw.append(replaced.is_set())

    late = threading.Thread(target=read_late)
    reading = [threading.Thread(target=read) for _ in range(2)]
    for thread in reading:
        thread.start()
    begun.wait(LONG_S)
    replacing = threading.Thread(target=replace)
    replacing.start()
    assert not replaced.wait(0.01)
    ends.set()
    replacing.join(LONG_S)
    for thread in reading:
        thread.join(LONG_S)
    late.join(LONG_S)
    assert saw == [False, False, True]
