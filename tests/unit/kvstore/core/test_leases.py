"""What one worker may have leased, beside others: a worker that idles keeps it for good."""

import pytest

from services.kvstore.core import Limits, Open
from shared.ids import WorkerId
from tests.unit.kvstore.core.host import LAYERS, PAGE_BYTES, WORKERS, Host

MANY = [WorkerId(f"many{number}") for number in range(4)]
WANTED = 1000  # pages: more than there are


def a_host(num_pages: int) -> Host:
    return Host(num_pages, limits=Limits(disk_bytes_max=10**9, expiry_ns=1000, noted_ns=100))


@pytest.mark.parametrize("opened", ["all, then they lease", "one after the other"])
def test_workers_that_idle_leave_pages_for_those_that_come_later(opened: str) -> None:
    host = a_host(16 * LAYERS)
    if opened == "all, then they lease":
        for worker in MANY:
            host.open(worker)
    for worker in MANY:
        if opened == "one after the other":
            host.open(worker)
        assert len(host.lease(WANTED, worker)) >= LAYERS, f"{worker} can write nothing"
    for at, worker in enumerate(MANY):  # each goes on, whatever the others hold
        pages = host.lease(LAYERS, worker, 2) or list(host.leased(worker))
        host.commit([(at, 0)], pages[:LAYERS], worker, last_lease=2)
        host.finish_write()
        assert len(host.leased(worker)) + len(host.lease(WANTED, worker, 3)) >= LAYERS


def test_a_worker_alone_leaves_pages_for_what_is_staged() -> None:
    host = a_host(8 * LAYERS)
    host.open()
    host.store([(0, 0), (0, 1)])
    assert len(host.leased(WORKERS[0])) + len(host.lease(WANTED)) == 4 * LAYERS
    assert host.lease(WANTED) == []
    assert host.stage(0, 2).num_here == 2


def test_an_arena_of_few_blocks_has_one_for_a_worker_at_least() -> None:
    host = a_host(LAYERS)
    host.open()
    assert len(host.lease(WANTED)) == LAYERS


def test_pages_of_another_size_do_not_count() -> None:
    host = a_host(8 * LAYERS)
    host.core.on_open(Open(MANY[1], "i", "g", LAYERS, 2 * PAGE_BYTES), 0)
    host.open()
    assert len(host.lease(WANTED)) == 4 * LAYERS
