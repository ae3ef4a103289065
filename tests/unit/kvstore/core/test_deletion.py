"""A deleted session's blocks go from every tier, also while they are in use."""

import pytest

from services.kvstore.core import (
    DeleteBlocks,
    FoundBlocks,
    ResetDisk,
    StoredBlock,
    WriteOutcome,
)
from shared.ids import SessionId, TenantId
from shared.owners import NO_OWNER, owner_key
from tests.unit.kvstore.core.host import BLOCK_BYTES, LAYERS, NUM_PAGES, PAGE_BYTES, Host, key_of

FOX = owner_key(TenantId("t"), SessionId("fox"))
CROW = owner_key(TenantId("t"), SessionId("crow"))


@pytest.fixture
def host() -> Host:
    host = Host()
    host.open()
    return host


def test_no_two_sessions_are_one_owner() -> None:
    names = [("t", "fox"), ("tf", "ox"), ("t", "crow"), ("u", "fox")]
    owners = {owner_key(TenantId(tenant), SessionId(name)) for tenant, name in names}
    assert len(owners) == 4 and NO_OWNER not in owners


def test_a_sessions_blocks_are_found_without_its_record(host: Host) -> None:
    host.store([(0, 0), (0, 1)], FOX)
    host.store([(1, 0)], CROW)
    host.store([(2, 0)])
    host.evict_all()  # the disk alone has them
    assert host.delete([], FOX) == 2
    assert host.stage(0, 2).num_blocks == 0
    assert key_of(0, 0) not in host.core.disk
    assert DeleteBlocks([(key_of(0, 1), LAYERS)]) in host.effects
    assert host.stage(1, 1).num_blocks == host.stage(2, 1).num_blocks == 1
    assert host.delete([], FOX) == 0


def test_nobodys_blocks_are_not_a_sessions(host: Host) -> None:
    host.store([(0, 0)])
    assert host.delete([], NO_OWNER) == 0
    assert host.stage(0, 1).num_blocks == 1


def test_a_block_of_another_session_goes_if_the_record_names_it(host: Host) -> None:
    host.store([(0, 0)], CROW)
    assert host.delete([(0, 0)], FOX) == 1
    assert host.stage(0, 1).num_blocks == 0
    assert host.delete([], CROW) == 0, "it is listed still"


def test_a_block_that_is_being_written_never_arrives(host: Host) -> None:
    host.commit([(0, 0)], host.lease(LAYERS), owner=FOX)
    assert host.delete([], FOX) == 1
    assert host.stage(0, 1).num_blocks == 0
    host.finish_write()
    assert host.effects.count(DeleteBlocks([(key_of(0, 0), LAYERS)])) == 1
    assert not host.core.disk.keys and not host.arena.holding


def test_a_block_whose_write_failed_goes_from_the_arena(host: Host) -> None:
    host.commit([(0, 0)], host.lease(LAYERS), owner=FOX)
    host.finish_write(WriteOutcome.FAILED)
    host.finish_write(WriteOutcome.FAILED)
    assert host.delete([], FOX) == 1
    assert host.arena.num_free == NUM_PAGES


def test_pages_that_are_loaded_or_read_go_when_they_are_let_go(host: Host) -> None:
    host.store([(0, 0)], FOX)
    host.evict_all()
    staged = host.stage(0, 1)
    assert host.delete([], FOX) == 1
    while host.loads:
        host.finish_load()
    host.check_pages_conserved()
    assert host.arena.num_free == NUM_PAGES - LAYERS
    host.release(staged.ticket)
    assert host.arena.num_free == NUM_PAGES


def test_owners_are_known_again_after_a_restart(host: Host) -> None:
    stored = StoredBlock(key_of(0, 0), LAYERS, PAGE_BYTES, BLOCK_BYTES, 0, 0, FOX)
    host.perform(host.core.on_disk_found(FoundBlocks.of([stored]), 0))
    staged = host.stage(0, 1)
    while host.loads:
        host.finish_load()
    host.release(staged.ticket)
    host.perform(host.core.on_disk_damaged(1, 0))
    assert ResetDisk() in host.effects
    assert host.delete([], FOX) == 1, "the arena's copy is the session's, too"
    assert host.stage(0, 1).num_blocks == 0


def test_a_write_that_waits_is_not_made_after_the_deletion() -> None:
    """Not even by a stop; and what was sent before it is undone."""
    host = Host(write_wait_ns=1_000_000)
    host.open()
    host.store([(1, 0)], CROW)
    host.evict_all()
    host.stage(1, 1)  # while it is read, writes wait
    host.commit([(0, 0)], host.lease(LAYERS), owner=FOX)
    assert not host.writes
    assert host.delete([], FOX) == 1
    host.perform(host.core.on_stop())
    assert not host.writes
    while host.loads:
        host.finish_load()
    assert not host.writes and host.stage(0, 1).num_blocks == 0
