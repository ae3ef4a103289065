"""Pages of one host's store reach another host's arena."""

from pathlib import Path

import numpy as np
import pytest

from services.kvstore.core import LoadOutcome
from services.kvstore.tiers.values import fingerprint_digest
from tests.unit.kvstore.peers.hosts import (
    LONG_S,
    LOST,
    OWNER,
    THERE,
    Receiver,
    Sender,
    fetching,
    key,
    serving,
)

READY, MISSING = LoadOutcome.READY, LoadOutcome.MISSING


@pytest.mark.parametrize(
    ("page_bytes", "window_bytes"), [(256, 1 << 24), (5000, 1), (70_000, 300_000), (300_001, 1)]
)
def test_pages_come_as_they_are_stored(tmp_path: Path, page_bytes: int, window_bytes: int) -> None:
    sender = Sender(tmp_path / "kv", blocks=9, layers=3, page_bytes=page_bytes)
    receiver = Receiver(tmp_path / "arena", 27, page_bytes)
    numbers = list(range(1, 10))
    orders = [receiver.reads(layer, numbers, 9 * layer) for layer in range(3)]
    with (
        serving(sender.disk) as server,
        fetching(server.address, receiver, window_bytes=window_bytes) as client,
    ):
        client.submit(orders, LONG_S)
        results = receiver.reports.get(timeout=LONG_S)
        assert [read.reads for read in results] == orders
        assert [read.outcomes for read in results] == [[READY] * 9] * 3
        assert client.counts.num_pages == 27
        assert client.counts.bytes_received == 27 * page_bytes
    for layer, read in enumerate(results):
        for number, header in zip(numbers, read.headers, strict=True):
            page = 9 * layer + number - 1
            assert np.array_equal(receiver.arena.pages[page], sender.pages[number - 1, layer])
            assert receiver.arena.word(page) == THERE
            assert header is not None
            assert (header.key, header.parent) == (key(number), key(number - 1))
            assert (header.layer, header.num_layers, header.owner) == (layer, 3, OWNER)
            assert header.tokens == [number] * 64
            assert header.fingerprint == fingerprint_digest("f")
    assert server.counts.bytes_sent == 27 * (page_bytes + 512)
    sender.disk.close()


def test_what_the_peer_does_not_have_is_missing(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "kv", blocks=2, layers=1, page_bytes=4096)
    receiver = Receiver(tmp_path / "arena", 5, 4096)
    with serving(sender.disk) as server, fetching(server.address, receiver) as client:
        client.submit([receiver.reads(0, [1, 9, 8, 2], 0), receiver.reads(1, [1], 4)], LONG_S)
        assert receiver.outcomes() == [[READY, MISSING, MISSING, READY], [MISSING]]
    words = [receiver.arena.word(page) for page in range(5)]
    assert words == [THERE, LOST, LOST, THERE, LOST]
    assert server.counts.num_pages_missing == 3
    sender.disk.close()


def test_pages_of_another_size_are_missing(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=4096)
    receiver = Receiver(tmp_path / "arena", 1, 4097)
    with serving(sender.disk) as server, fetching(server.address, receiver) as client:
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[MISSING]]
        assert client.counts.num_refused == client.counts.num_corrupt == 0
    sender.disk.close()


def test_an_order_without_pages_is_reported(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "arena", 1, 4096)
    with fetching(("127.0.0.1", 1), receiver) as client:
        client.submit([], LONG_S)
        assert receiver.outcomes() == []
