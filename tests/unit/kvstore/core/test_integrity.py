"""What is broken on purpose is seen."""

import asyncio
from collections.abc import Callable

import pytest

from services.kvstore import service
from services.kvstore.core.integrity import check_integrity
from services.kvstore.core.tiers.arena_block import NO_PAGE
from tests.unit.kvstore.core.host import LAYERS, NUM_PAGES, WORKERS, Host, key_of


@pytest.fixture
def host() -> Host:
    """A block that is idle, one that is pinned, one that is written, and some leased pages."""
    host = Host()
    host.open()
    host.store([(0, 0), (1, 0)])
    host.stage(1, 1)
    host.commit([(2, 0)], host.lease(LAYERS))
    host.lease(1)
    check_integrity(host.core)
    return host


def lose_a_page(host: Host) -> None:
    host.arena._free.pop()


def give_a_page_twice(host: Host) -> None:
    worker = host.core.workers.find(WORKERS[0])
    assert worker is not None
    worker.lease(host.arena.page_bytes, [host.arena.blocks[key_of(0, 0)].pages[0]], 9, 0)


def forget_a_pin(host: Host) -> None:
    host.arena.blocks[key_of(1, 0)].num_pins = 0
    host.arena.num_pinned = 0


def miss_a_settle(host: Host) -> None:
    host.arena.idle.discard(host.arena.blocks[key_of(0, 0)])


def evict_what_is_read(host: Host) -> None:
    host.arena.idle.add(host.arena.blocks[key_of(1, 0)])


def evict_the_only_copy(host: Host) -> None:
    block = host.arena.blocks[key_of(2, 0)]
    host.arena.give(block.strip([1]), [])


def miscount_pages(host: Host) -> None:
    host.arena.blocks[key_of(0, 0)].num_present -= 1


def miscount_pins(host: Host) -> None:
    host.arena.num_pinned += 1


def keep_what_is_empty(host: Host) -> None:
    block = host.arena.blocks[key_of(0, 0)]
    host.arena.give(block.strip_all(), [])


def lose_a_block(host: Host) -> None:
    block = host.arena.blocks.pop(key_of(0, 0))
    assert block.is_alive


def forget_a_write(host: Host) -> None:
    host.writing.end(next(iter(host.writing._writing)))


def queue_without_a_batch(host: Host) -> None:
    host.arena.blocks[key_of(1, 0)].queued.add(0)


def queue_without_a_page(host: Host) -> None:
    host.loading.disk.num_batches = 1
    block = host.arena.blocks[key_of(1, 0)]
    host.arena.give(block.strip([0]), [])
    block.queued.add(0)
    assert block.pages[0] == NO_PAGE


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lose_a_page, "lost or in two places"),
        (give_a_page_twice, "lost or in two places"),
        (forget_a_pin, "tickets are miscounted"),
        (miss_a_settle, "takeable, or not"),
        (evict_what_is_read, "takeable, or not"),
        (evict_the_only_copy, "only copy"),
        (miscount_pages, "pages are miscounted"),
        (miscount_pins, "miscounted pins"),
        (keep_what_is_empty, "without use"),
        (lose_a_block, "found, or not"),
        (forget_a_write, "takeable, or not"),
        (queue_without_a_batch, "waits for a load that is not queued"),
        (queue_without_a_page, "a load without a page"),
    ],
)
def test_what_is_broken_is_seen(host: Host, damage: Callable[[Host], None], why: str) -> None:
    damage(host)
    with pytest.raises(AssertionError, match=why):
        check_integrity(host.core)


def test_a_kvstore_at_rest_is_checked_and_does_not_go_on_with_a_lost_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "CHECK_EVERY_S", 0.001)
    host = Host()
    host.open()
    host.store([(0, 0)])
    lose_a_page(host)

    async def scenario() -> None:
        with pytest.raises(AssertionError, match="a page is lost"):
            await asyncio.wait_for(service.check_for_ever(host.core), 20)

    asyncio.run(scenario())


@pytest.mark.parametrize("why", ["loading", "writing", "large"])
def test_a_kvstore_at_work_or_too_large_is_not_checked(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    host = Host()
    host.open()
    host.store([(0, 0)])
    if why == "loading":
        host.evict_all()
        host.stage(0, 1)
    elif why == "writing":
        host.commit([(1, 0)], host.lease(LAYERS))
    else:
        monkeypatch.setattr(service, "CHECK_PAGES_MAX", NUM_PAGES - 1)
    lose_a_page(host)
    rests = iter([None, None])

    async def rest(_: float) -> None:
        if next(rests, ...) is ...:
            raise TimeoutError

    monkeypatch.setattr("services.kvstore.service.asyncio.sleep", rest)
    with pytest.raises(TimeoutError):
        asyncio.run(service.check_for_ever(host.core))
