"""What only memory has is reported, used, expired and deleted as what is on disk."""

import pytest

from services.kvstore.core import WriteOutcome
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.arena_only_blocks import RECHECK_NS, ArenaOnlyBlocks
from services.kvstore.core.tiers.host_blocks import HostBlocks
from shared.blocks import BlockKey
from shared.ids import SessionId, TenantId
from shared.owners import OwnerKey, owner_key
from tests.unit.kvstore.core.host import BLOCK_BYTES, LAYERS, NUM_PAGES, Host, key_of

OWNER = owner_key(TenantId("t"), SessionId("s"))
OTHER = owner_key(TenantId("t"), SessionId("other"))
EXPIRY_NS = 1000  # of the host's blocks


@pytest.fixture
def host() -> Host:
    """Its disk holds two blocks, its arena six."""
    host = Host(disk_bytes_max=2 * BLOCK_BYTES)
    host.open()
    host.core.locations.on_checked(None, "life")
    return host


def num_leading(host: Host, owner: OwnerKey = OWNER) -> int | None:
    return host.tell().get(owner)


def test_evicted_blocks_lead_their_session_still(host: Host) -> None:
    host.store([(0, 0), (0, 1), (0, 2)], OWNER)
    assert len(host.core.disk) == 2 and host.core.arena_only.keys == [key_of(0, 2)]
    assert num_leading(host) == 3
    host.store([(1, 0), (1, 1)], OTHER)
    assert not {key_of(0, 0), key_of(0, 1)} & set(host.core.disk.keys)
    assert num_leading(host) is None, "nothing changed"
    host.commit([(0, 3)], host.lease(LAYERS), owner=OWNER)
    host.finish_write()
    assert num_leading(host) == 4
    host.evict_all()
    assert (
        host.core.arena_only.keys == [] and num_leading(host) == 1
    )  # the block that was written last


def test_a_refused_block_is_served_to_others_as_long_as_memory_has_it(host: Host) -> None:
    host.commit([(0, 0)], host.lease(LAYERS), owner=OWNER)
    for _ in range(2):
        host.finish_write(WriteOutcome.FULL)
    write = host.core.find_written(key_of(0, 0))
    assert write is not None and list(write.tokens) == [0] and list(write.checksums) == [0] * LAYERS
    assert write.pages == host.arena.blocks[key_of(0, 0)].pages
    assert host.core.on_locate([key_of(0, 0)], LAYERS, 100) == 1
    assert host.core.find_written(key_of(0, 0)) is write, "a server looks twice"
    host.evict_all()
    assert host.core.find_written(key_of(0, 0)) is None
    assert host.core.on_locate([key_of(0, 0)], LAYERS, 100) == 0


def test_it_expires_unless_it_is_used(host: Host) -> None:
    host.store([(0, 0), (0, 1), (0, 2)], OWNER)
    host.pass_time(EXPIRY_NS)
    host.renew([], [], used=[key_of(0, 2)])
    host.pass_time(EXPIRY_NS)
    assert key_of(0, 2) in host.core.arena_only and len(host.core.disk) == 2
    host.pass_time(1)
    host.pass_time(0)
    assert not host.arena.blocks and not len(host.core.arena_only) and not len(host.core.disk)
    assert not num_leading(host)


def test_what_a_longer_lived_session_continues_stays_with_it(host: Host) -> None:
    host.store([(0, 0)], OWNER)
    host.store([(0, 1)], OTHER, expiry_s=1)
    host.now_ns = 1
    host.store([(1, 0), (1, 1)])
    assert set(host.core.arena_only.keys) == {key_of(0, 0), key_of(0, 1)}
    host.pass_time(EXPIRY_NS + 1)
    assert {key_of(0, 0), key_of(0, 1)} <= host.arena.blocks.keys()
    host.pass_time(10**9)
    host.pass_time(0)
    assert not host.arena.blocks


def test_a_deleted_session_leaves_nothing_in_memory(host: Host) -> None:
    host.store([(0, 0), (0, 1), (0, 2)], OWNER)
    assert host.delete([], OWNER) == 3
    assert not len(host.core.arena_only) and not host.arena.holding
    assert not num_leading(host)


def test_a_turn_that_finds_it_gets_every_page_of_it_at_once(host: Host) -> None:
    host.store([(0, 0), (0, 1), (0, 2)], OWNER)
    host.store([(1, 0), (1, 1)])
    hinted = host.stage(0, 3, hinted_by="t")
    assert (hinted.num_blocks, hinted.num_pages_loading, hinted.num_here) == (3, 0, 3)
    staged = host.stage(0, 3)
    assert (staged.num_blocks, staged.num_pages_loading, staged.num_here) == (3, 0, 3)
    host.release(staged.ticket)
    host.release(hinted.ticket)
    assert host.lease(NUM_PAGES) != [] and not len(host.core.arena_only), "nothing stays pinned"


def test_a_damaged_disk_takes_nothing_from_memory(host: Host) -> None:
    host.store([(0, 0), (0, 1), (0, 2)], OWNER)
    host.perform(host.core.on_disk_damaged(1, host.now_ns))
    assert len(host.core.arena_only) == 3 and not len(host.core.disk)
    host.core.locations.on_checked(None, "second life")
    assert num_leading(host) == 3


def test_an_expired_block_is_looked_at_again_while_it_is_kept() -> None:
    tier, name = ArenaOnlyBlocks(EXPIRY_NS), BlockKey(b"a" * 16)
    tier.add(StoredBlock(name, LAYERS, 100, 0, used_at_ns=0, noted_at_ns=0), None)
    now_ns = EXPIRY_NS + 1
    assert tier.take_expired(now_ns, lambda key: True, 9) == []
    assert tier.take_expired(now_ns + RECHECK_NS, lambda key: False, 9) == []
    assert tier.take_expired(now_ns + RECHECK_NS + 1, lambda key: False, 9) == [name]


@pytest.mark.parametrize("is_end_on_disk", [True, False])
@pytest.mark.parametrize("is_to_disk", [True, False])
def test_a_block_between_others_changes_how_long_their_sessions_are(
    is_to_disk: bool, is_end_on_disk: bool
) -> None:
    here = HostBlocks(DiskTier(1 << 30), ArenaOnlyBlocks())
    root, first, second = (key_of(0, position) for position in range(3))
    end = StoredBlock(second, 1, 1, 1, 1, 1, OTHER, first)
    if is_end_on_disk:
        here.to_disk(end)
        here.add_to_arena_only(StoredBlock(key_of(1, 0), 1, 1, 1, 1, 1, OTHER, root), None)
    else:
        here.arena_only.add(end, None)
    changed: list[OwnerKey] = []
    here.on_change = lambda owner, least: changed.append(owner)
    new = StoredBlock(first, 1, 1, 1, 2, 2, OWNER, root)
    if is_to_disk:
        here.to_disk(new)
    else:
        here.add_to_arena_only(new, None)
    assert {*changed} == {OWNER, OTHER} and here.count_leading(OTHER) == 2
    changed.clear()
    (here.disk if is_to_disk else here.arena_only).remove(first)
    assert {*changed} == {OWNER, OTHER} and here.count_leading(OTHER) == 1
