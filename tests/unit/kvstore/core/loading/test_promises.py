"""When what is staged will be there, as the kvstore promises it."""

import pytest

from services.kvstore.core import LoadOutcome
from services.kvstore.core.integrity import check_integrity
from services.kvstore.core.tiers.backlog import TierSpeed
from shared.wire.urgency import DEMAND_PRIORITY
from tests.unit.kvstore.core.host import LAYERS, PAGE_BYTES, WORKERS, Host

PAGE_NS = 1000


def chain(sequence: int, num_blocks: int) -> list[tuple[int, int]]:
    return [(sequence, index) for index in range(num_blocks)]


@pytest.fixture
def host() -> Host:
    """Its disk gives a page in `PAGE_NS`, as it has found out."""
    host = Host()
    for worker in WORKERS:
        host.open(worker)
    for sequence in range(3):
        host.store(chain(sequence, 2))
    host.core.disk_speed.on_read(PAGE_BYTES, PAGE_NS)
    host.evict_all()
    return host


def test_what_is_here_is_not_promised(host: Host) -> None:
    host.stage(0, 2)
    while host.loads:
        host.finish_load(duration_ns=PAGE_NS)
    assert host.stage(0, 2).ready_in_ns == []


def test_each_layer_is_promised_behind_those_below_it_and_behind_what_is_more_urgent(
    host: Host,
) -> None:
    first = host.stage(0, 2, priority=1)
    assert first.ready_in_ns == [PAGE_NS * 2 * (layer + 1) for layer in range(LAYERS)]
    urgent = host.stage(1, 1, DEMAND_PRIORITY, WORKERS[1])
    num_read = len([1 for batch in host.loads for reads in batch for _ in reads.pages])
    assert urgent.ready_in_ns == [PAGE_NS * (num_read + layer + 1) for layer in range(LAYERS)]
    last = host.stage(2, 1, priority=1)
    left_below = [2 - min(num_read, 2), 4 - num_read]  # of the first, with the loader no more
    expected = [num_read + LAYERS + left + layer + 1 for layer, left in enumerate(left_below)]
    assert last.ready_in_ns == [PAGE_NS * num for num in expected]


def test_what_others_no_longer_want_delays_nobody(host: Host) -> None:
    host.stage(0, 1)  # with the loader
    given_up = host.stage(1, 2)
    host.release(given_up.ticket)
    num_read = len([1 for batch in host.loads for reads in batch for _ in reads.pages])
    assert num_read < 3 * LAYERS, "some of it was not read yet"
    expected = [PAGE_NS * (num_read + layer + 1) for layer in range(LAYERS)]
    assert host.stage(2, 1).ready_in_ns == expected


def test_the_speed_is_that_of_the_reads_and_failed_ones_say_nothing(host: Host) -> None:
    before = host.core.disk_speed.bytes_per_s
    host.stage(0, 2)
    num_pages = len(host.finish_load(duration_ns=0))
    assert host.core.disk_speed.bytes_per_s == before
    while host.loads:
        num_pages = len(host.finish_load(duration_ns=10 * PAGE_NS * num_pages))
    assert host.core.disk_speed.bytes_per_s < before
    host.stage(1, 1)
    slow = host.core.disk_speed.bytes_per_s
    while host.loads:
        alone = len([1 for reads in host.loads[0] for _ in reads.pages]) == 1
        host.finish_load(LoadOutcome.FAILED, duration_ns=1 if alone else 0)
    assert host.core.disk_speed.bytes_per_s == slow


def test_a_speed_follows_what_is_measured_lately() -> None:
    speed = TierSpeed()
    for _ in range(100):
        speed.on_read(1000, 10_000)
    assert speed.bytes_per_s == pytest.approx(1e8, rel=0.1)
    assert speed.ns(1000) == pytest.approx(10_000, rel=0.1)


def test_a_worker_lets_go_of_what_is_behind_the_part_that_it_wants(host: Host) -> None:
    staged = host.stage(0, 2, hinted_by="a")
    host.release(staged.ticket, num_kept=1)
    assert host.arena.num_pinned == 1 and host.arena.hinted.num_held == LAYERS
    for num_kept in (1, 2, -1):  # nothing is left behind those
        host.release(staged.ticket, num_kept=num_kept)
    assert host.arena.num_pinned == 1
    check_integrity(host.core)
    while host.loads:
        host.finish_load()
    host.release(staged.ticket)
    assert host.arena.num_pinned == 0 and host.arena.hinted.num_held == 0
    check_integrity(host.core)
