"""Hints pin only so much of an arena."""

from dataclasses import replace

from services.kvstore.calls import stage_event
from shared.hints import HINTED_SHARE, SHARE_OF_ONE
from shared.ids import DEFAULT_TENANT, SessionId, TenantId
from shared.owners import NO_OWNER, owner_key
from shared.wire.messages import KvStage
from tests.unit.kvstore.core.host import LAYERS, NUM_PAGES, WORKERS, Host
from tests.unit.kvstore.core.test_store import chain

A, S = TenantId("a"), SessionId("s")
BLOCKS = NUM_PAGES // LAYERS


def stored(num_sequences: int, num_blocks: int) -> Host:
    """Sequences that are on disk only."""
    host = Host()
    host.open()
    for sequence in range(num_sequences):
        host.store(chain(sequence, num_blocks))
        host.evict_all()
    return host


def test_hints_leave_room_for_others_and_for_new_kv() -> None:
    host = stored(3, BLOCKS)
    of_one = int(SHARE_OF_ONE * NUM_PAGES) // LAYERS
    of_all = int(HINTED_SHARE * NUM_PAGES) // LAYERS
    first = host.stage(0, BLOCKS, hinted_by="a")
    assert first.num_blocks == of_one < of_all < BLOCKS
    assert host.stage(1, BLOCKS, hinted_by="a").num_blocks == 0
    others = host.stage(2, BLOCKS, hinted_by="b").num_blocks
    assert of_all - of_one - 1 <= others <= of_all - of_one
    assert len(host.lease(NUM_PAGES)) >= NUM_PAGES - of_all * LAYERS
    host.check_pages_conserved()


def test_without_tenants_one_session_leaves_room_for_others_and_all_fill_the_whole_share() -> None:
    host = stored(3, BLOCKS)
    of_one = int(SHARE_OF_ONE * NUM_PAGES) // LAYERS
    of_all = int(HINTED_SHARE * NUM_PAGES) // LAYERS
    assert host.stage(0, BLOCKS, hinted_by=DEFAULT_TENANT).num_blocks == of_one
    assert host.stage(0, BLOCKS, hinted_by=DEFAULT_TENANT).num_blocks == 0
    assert host.stage(1, BLOCKS, hinted_by=DEFAULT_TENANT).num_blocks == of_all - of_one
    assert host.stage(2, BLOCKS, hinted_by=DEFAULT_TENANT).num_blocks == 0
    assert len(host.lease(NUM_PAGES)) >= NUM_PAGES - of_all * LAYERS
    host.check_pages_conserved()


def test_a_hint_counts_for_its_session_and_a_turn_for_none() -> None:
    stage = KvStage(
        worker_id=WORKERS[0],
        incarnation="i",
        fingerprint="f",
        num_layers=LAYERS,
        page_bytes=1,
        tenant=A,
        session_id=S,
    )
    assert stage_event(stage, [], None, 1 << 20).hinted_by is None
    hinted = stage_event(replace(stage, is_hint=True), [], None, 1 << 20)
    assert hinted.hinted_by == (A, owner_key(A, S))


def test_turns_that_are_here_are_no_hints() -> None:
    host = stored(2, BLOCKS // 2)
    assert host.stage(0, BLOCKS // 2).num_blocks == BLOCKS // 2
    assert host.stage(1, 1, hinted_by="a").num_blocks == 1


def test_what_a_hint_pinned_is_free_for_others_however_it_ends() -> None:
    for end in ("released", "worker lost", "expired"):
        host = stored(2, BLOCKS)
        first = host.stage(0, BLOCKS, hinted_by="a")
        if end == "released":
            host.release(first.ticket)
        elif end == "worker lost":
            host.lose(WORKERS[0])
            host.open()
        else:
            host.pass_time(10**12)
        while host.loads:
            host.finish_load()
        assert host.arena.hinted.room(A, NO_OWNER) == int(SHARE_OF_ONE * NUM_PAGES), end
        host.check_pages_conserved()


def test_what_hints_may_hold_grows_with_the_arena() -> None:
    host = Host(num_pages=NUM_PAGES // 2)
    host.grow(NUM_PAGES - NUM_PAGES // 2)
    assert host.arena.hinted.room(A, NO_OWNER) == int(SHARE_OF_ONE * NUM_PAGES)
