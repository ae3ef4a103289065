"""The kvstore's decisions, one by one."""

from typing import get_args

import pytest

from services.kvstore.core import (
    DeleteBlocks,
    LoadOutcome,
    Release,
    ResetDisk,
    TouchBlocks,
    WriteOutcome,
)
from services.kvstore.core.tiers.workers import SEQ_WINDOW
from shared.arena import PageState
from shared.errors import InvalidRequest, NotFound
from shared.eviction import UNKNOWN_KIND, EvictionName
from shared.eviction.returns import TURN_NS
from shared.ids import SessionId, TenantId
from shared.owners import owner_key
from shared.wire.urgency import DEMAND_PRIORITY
from tests.tables import largest_table
from tests.unit.kvstore.core.host import (
    BLOCK_BYTES,
    LAYERS,
    NUM_PAGES,
    PAGE_BYTES,
    TICKET_NS,
    WORKERS,
    Host,
    each_page,
    key_of,
)

FOX = owner_key(TenantId("t"), SessionId("fox"))


@pytest.fixture
def host() -> Host:
    host = Host()
    host.open(WORKERS[0])
    host.open(WORKERS[1])
    return host


def chain(sequence: int, num_blocks: int) -> list[tuple[int, int]]:
    return [(sequence, index) for index in range(num_blocks)]


def test_who_is_not_open_must_open() -> None:
    with pytest.raises(NotFound) as caught:
        Host().lease(1)
    assert caught.value.code == "unknown_worker"


def test_a_committed_block_is_ready_at_once_and_told_of_once_durable(host: Host) -> None:
    pages = host.lease(LAYERS)
    host.core.locations.on_checked(None, "a")
    host.commit([(0, 0)], pages, owner=FOX)
    assert all(host.words[page][1] is PageState.READY for page in pages)
    assert host.tell() == {}
    host.finish_write()
    assert host.tell() == {FOX: 1}
    assert host.core.disk.num_bytes == BLOCK_BYTES


def test_a_block_that_is_stored_gives_its_pages_back(host: Host) -> None:
    host.store([(0, 0)])
    pages = host.lease(LAYERS)
    host.commit([(0, 0)], pages)
    assert not host.writes
    assert set(pages) <= set(host.arena.free_pages)


def test_a_new_block_stands_behind_those_that_only_the_disk_has(host: Host) -> None:
    host.store(chain(0, 2))
    host.evict_all()
    host.commit(chain(0, 4)[2:], host.lease(2 * LAYERS))
    assert [host.arena.blocks[key_of(0, index)].depth for index in (2, 3)] == [2, 3]


def test_two_stages_share_the_pages_in_flight(host: Host) -> None:
    host.store(chain(0, 2))
    host.evict_all()
    first = host.stage(0, 2)
    second = host.stage(0, 2, worker=WORKERS[1])
    assert (first.pages, first.generations) == (second.pages, second.generations)
    num_pages = 0
    while host.loads:
        num_pages += len(host.finish_load())
    assert num_pages == 2 * LAYERS
    host.release(first.ticket)
    assert host.stage(0, 2).num_pages_loading == 0


def test_layer_0_of_every_session_comes_before_layer_1_of_any_and_turns_before_advisories(
    host: Host,
) -> None:
    for sequence in range(3):
        host.store(chain(sequence, 2))
    host.evict_all()
    host.stage(0, 1)  # goes to the loader at once
    host.stage(1, 2, priority=1)
    host.stage(2, 1, priority=DEMAND_PRIORITY)
    host.finish_load()
    order = []
    while host.loads:
        order += [(load.key, load.layer) for load in host.finish_load()]
    assert order == [
        (key_of(1, 0), 0), (key_of(1, 1), 0), (key_of(1, 0), 1),
        (key_of(2, 0), 0), (key_of(2, 0), 1),
        (key_of(1, 1), 1),
    ]  # fmt: skip


def test_an_advisory_that_becomes_a_turn_moves_forward(host: Host) -> None:
    for sequence in range(3):
        host.store(chain(sequence, 2))
    host.evict_all()
    host.stage(0, 2)
    host.stage(1, 1)
    host.stage(2, 1)
    host.stage(2, 1, priority=5, worker=WORKERS[1])
    host.finish_load()
    host.finish_load()
    assert [load.key for load in host.finish_load()][:2] == [key_of(2, 0)] * 2


WHOLE, LOW = [True, True], [True, False]


@pytest.mark.parametrize(
    ("eviction", "kept"),
    [
        ("layer", {(0, 0): LOW, (0, 1): LOW, (1, 0): WHOLE, (1, 1): LOW}),
        ("predicted", {(0, 0): LOW, (0, 1): LOW, (1, 0): WHOLE, (1, 1): LOW}),
        ("lru", {(1, 0): WHOLE, (1, 1): WHOLE}),
    ],
)
def test_three_pages_make_room_by_the_policy(
    eviction: EvictionName, kept: dict[tuple[int, int], list[bool]]
) -> None:
    host = Host(eviction=eviction)
    host.open()
    host.store(chain(0, 2))
    host.now_ns = 1
    host.store(chain(1, 2))
    host.lease(NUM_PAGES - 8 + 3)
    held = {
        (sequence, index): [page >= 0 for page in block.pages]
        for sequence in range(2)
        for index in range(2)
        if (block := host.arena.blocks.get(key_of(sequence, index))) is not None
    }
    assert held == kept


def test_what_a_worker_used_in_its_pool_is_given_up_after_what_nobody_used() -> None:
    host = Host(disk_bytes_max=4 * BLOCK_BYTES)
    host.open()
    host.store(chain(0, 2))
    host.now_ns = 100
    host.store(chain(1, 2))
    host.now_ns = 700
    host.renew([], [], used=[key_of(0, 1), key_of(7, 7)])  # the last of a sequence stands for all
    assert TouchBlocks([key_of(0, 1), key_of(0, 0)]) in host.effects
    host.store(chain(2, 2))
    assert set(host.core.disk.keys) == {key_of(s, n) for s in (0, 2) for n in range(2)}


@pytest.mark.parametrize("by", ["stage", "use in a pool"])
def test_both_tiers_know_of_what_kind_a_sequence_is_that_a_turn_used(by: str) -> None:
    """A turn that is only announced is none."""
    host = Host()
    host.open()
    host.stage(0, 2)  # the first turn: nothing is here
    host.store(chain(0, 2))
    host.renew([], [], used=[key_of(0, 1)])  # it ends
    (kind,) = kinds_of(host, 0, 2)
    kinds = [UNKNOWN_KIND, kind]
    for turn in range(1, 4):
        host.now_ns = turn * TURN_NS
        host.release(host.stage(0, 2, hinted_by="t").ticket)
        assert kinds_of(host, 0, 2) == {kinds[-1]}
        if by == "stage":
            host.release(host.stage(0, 2).ticket)
        else:
            host.renew([], [], used=[key_of(0, 1)])
        (kind,) = kinds_of(host, 0, 2)
        kinds.append(kind)
    assert len(set(kinds)) == len(kinds), "each has had one turn more"


@pytest.mark.parametrize("by", ["stage", "use in a pool"])
@pytest.mark.parametrize("eviction", get_args(EvictionName))
def test_what_returns_is_learnt_where_the_order_of_eviction_uses_it(
    eviction: EvictionName, by: str
) -> None:
    host = Host(eviction=eviction)
    host.open()
    host.store(chain(0, 2))
    if by == "stage":
        host.release(host.stage(0, 2).ticket)
    else:
        host.renew([], [], used=[key_of(0, 1)])
    assert bool(host.core._returns._chains) == (eviction == "predicted")


def kinds_of(host: Host, sequence: int, num_blocks: int) -> set[int]:
    """Those of a sequence's blocks, in the arena and on disk."""
    keys = [key_of(sequence, index) for index in range(num_blocks)]
    on_disk = [stored.return_kind for key in keys if (stored := host.core.disk.get(key))]
    assert len(on_disk) == num_blocks
    return {*on_disk, *(host.arena.blocks[key].return_kind for key in keys)}


def test_use_in_a_pool_counts_in_the_arena_where_that_is_the_lowest_tier(host: Host) -> None:
    for sequence in range(2):
        host.commit(chain(sequence, 2), host.lease(2 * LAYERS))
        for outcome in (WriteOutcome.FAILED, WriteOutcome.FAILED) * 2:
            host.finish_write(outcome)
    assert not len(host.core.disk)
    host.now_ns = 5
    host.renew([], [], used=[key_of(0, 1)])
    host.lease(NUM_PAGES - 4 * LAYERS + 1)
    assert all(key_of(0, index) in host.arena.blocks for index in range(2))
    assert key_of(1, 1) not in host.arena.blocks
    host.check_pages_conserved()


def test_a_stage_that_does_not_fit_is_shortened(host: Host) -> None:
    host.store(chain(0, 5))
    host.evict_all()
    host.lease(NUM_PAGES - 5)
    staged = host.stage(0, 5)
    assert staged.num_blocks == 2
    host.check_pages_conserved()


def test_a_stage_does_not_evict_its_own_blocks(host: Host) -> None:
    host.store(chain(0, 4))
    host.lease(NUM_PAGES - 4)  # of each block only layer 0 is left
    kept = [host.arena.blocks[key_of(0, index)].pages[0] for index in range(2)]
    staged = host.stage(0, 4)
    assert staged.pages[:2] == kept
    assert staged.num_pages_loading == 2


def test_a_release_gives_up_loads_that_have_not_begun(host: Host) -> None:
    host.store(chain(0, 5))
    host.evict_all()
    staged = host.stage(0, 5)
    assert sum(len(each_page(batch)) for batch in host.loads) == 6
    host.release(staged.ticket)
    assert host.arena.num_free == NUM_PAGES - 6
    host.finish_load()
    host.finish_load()
    assert not host.loads


@pytest.mark.parametrize("outcome", [LoadOutcome.CORRUPT, LoadOutcome.MISSING])
def test_a_page_that_does_not_come_deletes_its_block_everywhere(
    host: Host, outcome: LoadOutcome
) -> None:
    host.store(chain(0, 2))
    host.evict_all()
    staged = host.stage(0, 2)
    host.finish_load(outcome)
    assert DeleteBlocks([(key_of(0, 0), LAYERS)]) in host.effects
    assert host.core.counts.num_pages_corrupt == (outcome is LoadOutcome.CORRUPT)
    host.finish_load()
    host.release(staged.ticket)
    assert host.stage(0, 2).num_blocks == 0


@pytest.mark.parametrize("way", ["deleted", "unwritten"])
def test_what_continues_a_lost_block_is_found_again_behind_it(host: Host, way: str) -> None:
    """Only an eviction takes the end before the beginning: what was lost is computed again, and so
    what continues it is of use again."""
    if way == "deleted":
        host.store(chain(0, 3))
        host.delete([(0, 1)])
    else:
        host.store(chain(0, 1))
        host.commit([(0, 1)], host.lease(LAYERS))
        host.finish_write(WriteOutcome.FAILED)
        host.finish_write(WriteOutcome.FAILED)
        host.store([(0, 2)])
    host.evict_all()
    staged = host.stage(0, 3)
    assert staged.num_blocks == 1
    host.release(staged.ticket)
    host.store([(0, 1)])
    host.evict_all()
    assert host.stage(0, 3).num_blocks == 3


def test_a_block_deleted_while_it_is_written_is_deleted_after(host: Host) -> None:
    host.commit([(0, 0)], host.lease(LAYERS))
    assert host.delete([(0, 0)]) == 1
    assert host.effects[-1] == DeleteBlocks([(key_of(0, 0), LAYERS)])
    assert host.arena.num_free == NUM_PAGES - LAYERS, "the writer still reads its pages"
    host.finish_write()
    assert host.arena.num_free == NUM_PAGES
    assert key_of(0, 0) not in host.core.disk


def test_a_full_disk_drops_the_oldest_once_then_keeps_the_block_in_the_arena(host: Host) -> None:
    host.store(chain(0, 2))
    host.commit([(1, 0)], host.lease(LAYERS))
    host.finish_write(WriteOutcome.FULL)
    assert len(host.core.disk) == 0
    host.finish_write(WriteOutcome.FULL)
    assert host.core.counts.num_blocks_unwritten == 1
    staged = host.stage(1, 1)
    assert staged.num_blocks == 1
    host.release(staged.ticket)
    host.evict_all()
    assert host.stage(1, 1).num_blocks == 0


def test_a_page_that_is_not_what_was_announced_is_not_kept(host: Host) -> None:
    pages = host.lease(LAYERS)
    host.commit([(0, 0)], pages)
    host.finish_write(WriteOutcome.CORRUPT)
    assert host.stage(0, 1).num_blocks == 0
    assert host.core.counts.num_pages_corrupt == 1


def test_the_disk_keeps_its_size_and_age() -> None:
    host = Host(disk_bytes_max=3 * BLOCK_BYTES)
    host.open()
    host.store(chain(0, 3))
    host.now_ns = 600
    staged = host.stage(0, 1)
    host.release(staged.ticket)
    assert TouchBlocks([key_of(0, 0)]) in host.effects
    host.store([(1, 0)])
    assert set(host.core.disk.keys) == {key_of(0, 0), key_of(0, 1), key_of(1, 0)}
    host.now_ns = 1100
    host.perform(host.core.on_tick(host.now_ns))
    assert set(host.core.disk.keys) == {key_of(0, 0), key_of(1, 0)}


def test_a_new_incarnation_takes_back_what_the_old_one_held(host: Host) -> None:
    host.lease(5)
    old = host.incarnations[WORKERS[0]]
    host.open(WORKERS[0])
    assert host.arena.num_free == NUM_PAGES
    host.incarnations[WORKERS[0]] = old
    with pytest.raises(NotFound):
        host.lease(1)


def test_word_of_an_open_that_comes_late_or_twice_takes_nothing(host: Host) -> None:
    old = host.incarnations[WORKERS[0]]
    host.open(WORKERS[0])
    pages = host.lease(LAYERS)
    host.open_as(WORKERS[0], host.incarnations[WORKERS[0]])
    with pytest.raises(NotFound):
        host.open_as(WORKERS[0], old)
    host.commit([(0, 0)], pages)
    assert len(host.writes) == 1


def test_what_was_given_out_of_hand_and_is_heard_again_takes_nothing(host: Host) -> None:
    """The worker may have been leased the same pages again meanwhile."""
    pages = host.lease(2 * LAYERS)
    given_back = Release(
        WORKERS[0],
        host.incarnations[WORKERS[0]],
        0,
        PAGE_BYTES,
        pages[:LAYERS],
        seq=1,
        last_lease=1,
    )
    host.perform(host.core.on_release(given_back, host.now_ns))
    host.commit([(0, 0)], pages[LAYERS:], seq=2)
    again = host.lease(NUM_PAGES)
    assert set(pages[:LAYERS]) <= set(again)
    host.perform(host.core.on_release(given_back, host.now_ns))
    host.commit([(0, 0)], pages[LAYERS:], seq=2)
    assert set(host.leased(WORKERS[0])) == set(again)


def test_numbers_far_behind_the_latest_are_not_believed(host: Host) -> None:
    worker = host.core.workers.find(WORKERS[0])
    assert worker is not None
    assert not any(worker.is_repeated(seq) for seq in range(1, 3 * SEQ_WINDOW, 2))
    assert worker.is_repeated(2) and not worker.is_repeated(3 * SEQ_WINDOW - 2)
    assert worker.is_repeated(3 * SEQ_WINDOW - 1) and not worker.is_repeated(0)
    assert largest_table(worker) <= 2 * SEQ_WINDOW + 1


def test_leased_pages_that_a_worker_does_not_name_go_back(host: Host) -> None:
    lost, kept = host.lease(LAYERS), host.lease(LAYERS)
    host.now_ns += TICKET_NS - 1
    host.renew([], kept)
    assert host.arena.num_free == NUM_PAGES - 2 * LAYERS  # their answer may be on its way still
    host.now_ns += 1
    late = host.lease(LAYERS)
    host.renew([], kept)
    assert host.arena.num_free == NUM_PAGES - 2 * LAYERS
    assert set(host.leased(WORKERS[0])) == {*kept, *late} and not set(lost) & {*kept, *late}
    host.pass_time(10 * TICKET_NS)
    assert set(host.leased(WORKERS[0])) == {*kept, *late}, "silence takes no pages"


def test_pages_of_an_answer_that_may_still_come_do_not_go_back(host: Host) -> None:
    """Their worker stood still: it reads the answer after it has said what it holds."""
    pages = host.lease(LAYERS, number=7)
    host.now_ns += TICKET_NS
    host.renew([], [], last_lease=6)
    assert set(host.leased(WORKERS[0])) == set(pages)
    host.renew([], [], last_lease=7)
    assert not host.leased(WORKERS[0])


def test_pages_of_a_commit_that_may_be_under_way_do_not_go_back(host: Host) -> None:
    """It named them until just now: the commit that gave them away arrives after the renewal."""
    pages = host.lease(LAYERS)
    host.now_ns += 2 * TICKET_NS
    host.renew([], pages)
    host.now_ns += TICKET_NS - 1
    host.renew([], [])
    host.commit([(0, 0)], pages)
    assert len(host.writes) == 1


def test_pages_that_were_leased_anew_are_not_those_that_a_late_message_means(host: Host) -> None:
    pages = host.lease(LAYERS)
    host.now_ns += TICKET_NS
    host.renew([], [])
    taken = host.lease(NUM_PAGES, number=2)
    assert set(pages) <= set(taken)
    with pytest.raises(InvalidRequest, match="not leased"):
        host.commit([(0, 0)], pages)
    host.release(pages=pages)
    assert set(host.leased(WORKERS[0])) == set(taken)
    host.commit([(0, 0)], pages, last_lease=2)
    host.release(pages=taken, last_lease=2)
    assert not host.leased(WORKERS[0])


def test_a_refused_commit_takes_nothing(host: Host) -> None:
    pages = host.lease(2 * LAYERS)
    with pytest.raises(InvalidRequest):
        host.commit([(0, 0), (0, 1)], pages[:LAYERS] * 2)
    host.commit([(0, 0), (0, 1)], pages)
    assert len(host.writes) == 2


def test_a_worker_that_opens_again_holds_nothing(host: Host) -> None:
    host.store(chain(0, 1))
    staged = host.stage(0, 1)
    pages = host.lease(5)
    host.open(WORKERS[0])
    assert host.arena.num_free == NUM_PAGES - LAYERS
    host.release(staged.ticket, pages)
    host.check_pages_conserved()
    assert len(host.lease(NUM_PAGES)) == NUM_PAGES


def test_a_read_that_fails_fails_this_load_only(host: Host) -> None:
    host.store(chain(0, 1))
    host.evict_all()
    staged = host.stage(0, 1)
    host.finish_load(LoadOutcome.FAILED)
    assert host.core.counts.num_pages_unread == 1
    assert host.words[staged.pages[0]][1] is PageState.FREE  # the reader sees that it is not READY
    assert host.words[staged.pages[1]][1] is PageState.READY
    assert len(host.core.disk) == 1
    again = host.stage(0, 1, worker=WORKERS[1])
    assert (again.num_blocks, again.num_pages_loading) == (1, 1)
    host.finish_load()
    assert host.words[again.pages[0]] == (again.generations[0], PageState.READY)


def test_a_failed_write_is_tried_once_more_and_costs_no_other_block(host: Host) -> None:
    host.store(chain(0, 2))
    host.commit([(1, 0)], host.lease(LAYERS))
    host.finish_write(WriteOutcome.FAILED)
    host.finish_write(WriteOutcome.FAILED)
    assert not host.writes and len(host.core.disk) == 2
    assert host.core.counts.num_blocks_unwritten == 1
    assert host.stage(1, 1).num_blocks == 1


def test_a_damaged_disk_begins_anew_once_and_the_arena_keeps_what_is_whole(host: Host) -> None:
    host.core.locations.on_checked(None, "a")
    host.store([*chain(0, 1), *chain(1, 1)], FOX)
    host.evict_all()
    loading = host.stage(0, 1)
    host.store(chain(2, 1))
    assert host.tell() == {FOX: 1}
    host.commit(chain(3, 1), host.lease(LAYERS))
    for _ in range(2):  # both threads met it
        host.perform(host.core.on_disk_damaged(1, host.now_ns))
    host.finish_write(WriteOutcome.FAILED)
    assert host.effects.count(ResetDisk()) == host.core.counts.num_disks_anew == 1
    assert host.core.locations.said is None and host.core.locations.is_in_doubt
    assert [host.stage(sequence, 1).num_blocks for sequence in range(4)] == [0, 0, 1, 1]
    host.finish_load(LoadOutcome.FAILED)
    host.release(loading.ticket)
    host.finish_write()
    assert list(host.core.disk.keys) == [key_of(3, 0)]
    host.check_pages_conserved()
    host.perform(host.core.on_disk_damaged(2, host.now_ns))
    assert len(host.core.disk) == 0


def test_a_ticket_that_nobody_renews_is_released(host: Host) -> None:
    host.store(chain(0, 2))
    lost, held = host.stage(0, 1), host.stage(0, 2)
    for _ in range(4):
        host.pass_time(TICKET_NS // 2)
        host.renew([held.ticket, 12345], [])
    pins = [host.arena.blocks[key_of(0, index)].num_pins for index in range(2)]
    assert pins == [1, 1] and host.arena.num_pinned == 2
    assert host.core.counts.num_tickets_expired == 1
    host.release(lost.ticket)  # too late, and without harm
    host.pass_time(TICKET_NS)
    host.renew([held.ticket], [])
    assert not any(block.num_pins for block in host.arena.holding.values())
    assert len(host.lease(NUM_PAGES)) == NUM_PAGES


def test_who_is_not_open_cannot_renew() -> None:
    with pytest.raises(NotFound):
        Host().renew([1], [])


@pytest.mark.parametrize("blocks_max", [0, 1, 2])
def test_what_an_answer_has_no_room_for_is_not_pinned(host: Host, blocks_max: int) -> None:
    host.store(chain(0, 3))
    staged = host.stage(0, 3, blocks_max=blocks_max)
    assert staged.num_blocks == blocks_max
    pinned = [block for block in host.arena.blocks.values() if block.num_pins]
    assert len(pinned) == blocks_max
    host.release(staged.ticket)
    assert not [block for block in host.arena.blocks.values() if block.num_pins]
