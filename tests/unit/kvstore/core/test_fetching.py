"""Blocks that come from other hosts: what is asked of whom, what is believed, what stays."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from services.kvstore.core import (
    LoadOutcome,
    PageFacts,
    PageReads,
    SetWords,
    WriteOutcome,
    most_offered,
)
from services.kvstore.core.base.backoff import RETRY_MAX_NS, RETRY_NS
from services.kvstore.core.base.events import RemotePrefix
from services.kvstore.core.loading.loads import SOURCES_MAX
from services.kvstore.core.loading.peers import (
    ASKED_MAX,
    DELETED_NS,
    Deleted,
    Peers,
)
from services.kvstore.core.tiers.source import FIRST_BATCH_BYTES, PEER_BATCH_NS, Source
from shared.arena import PageState
from shared.blocks import BlockKey
from shared.ids import HostId, SessionId, TenantId
from shared.locations import OBJECTS
from shared.owners import NO_OWNER, OwnerKey, owner_key
from shared.wire.urgency import DEMAND_PRIORITY
from tests.tables import largest_table
from tests.unit.kvstore.core.host import (
    LAYERS,
    PAGE_BYTES,
    PEERS,
    WORKERS,
    Host,
    each_page,
    key_of,
)

OWNER = owner_key(TenantId("t"), SessionId("s"))
FROM_PEER = RemotePrefix(PEERS[0], 100)


@pytest.fixture
def host() -> Host:
    made = Host()
    made.open()
    return made


def asked(batches: list[list[PageReads]]) -> list[tuple[BlockKey, int]]:
    return [(page.key, page.layer) for batch in batches for page in each_page(batch)]


def states(host: Host, pages: list[int]) -> list[PageState]:
    return [host.words[page][1] for page in pages]


def test_only_what_is_not_here_is_asked_of_the_peer_low_layers_first(host: Host) -> None:
    host.store([(0, 0), (0, 1)])
    host.evict_all()
    staged = host.stage(0, 4, DEMAND_PRIORITY, offer=RemotePrefix(PEERS[0], 3))
    assert (staged.num_blocks, staged.num_pages_loading, staged.num_here) == (3, 3 * LAYERS, 0)
    assert staged.coming_from == "disk", "as the first of them"
    assert {key for key, _ in asked(list(host.loads))} == {key_of(0, 0), key_of(0, 1)}
    assert asked(list(host.fetches[PEERS[0]])) == [(key_of(0, 2), 0), (key_of(0, 2), 1)]


def test_a_promise_is_that_of_the_slowest_source(host: Host) -> None:
    host.store([(0, 0)])
    host.stage(1, 1, offer=FROM_PEER)
    host.finish_fetch(duration_ns=200_000_000)
    host.evict_all()
    staged = host.stage(0, 2, DEMAND_PRIORITY, offer=FROM_PEER)
    assert staged.ready_in_ns == [100_000_000, 200_000_000]
    assert staged.source_bytes_per_s == pytest.approx(2 * LAYERS * PAGE_BYTES / 0.2)
    assert host.core.disk_speed.bytes_per_s > 1e8


def test_new_kv_is_written_while_the_object_store_is_waited_for() -> None:
    """But not while another host's disk is read, for a while."""
    host = Host(write_wait_ns=10)
    host.open()
    host.fetches[OBJECTS] = deque()
    host.stage(0, 2, offer=RemotePrefix(OBJECTS, 2))
    assert asked(list(host.fetches[OBJECTS]))
    host.commit([(1, 0)], host.lease(LAYERS))
    assert [write.key for write in host.writes] == [key_of(1, 0)]
    host.stage(2, 1, offer=FROM_PEER)
    host.commit([(3, 0)], host.lease(LAYERS))
    assert len(host.writes) == 1
    host.pass_time(10)
    assert len(host.writes) == 2


def test_who_asks_for_the_same_waits_for_the_same_pages(host: Host) -> None:
    host.open(WORKERS[1])
    one = host.stage(0, 2, offer=FROM_PEER)
    other = host.stage(0, 2, worker=WORKERS[1], offer=RemotePrefix(PEERS[1], 2))
    assert (other.pages, other.generations) == (one.pages, one.generations)
    assert not host.fetches[PEERS[1]]


def test_what_came_whole_is_written_as_it_was_and_can_be_read_again(host: Host) -> None:
    staged = host.stage(0, 2, offer=FROM_PEER)
    host.finish_fetches(OWNER)
    writes = list(host.writes)
    assert [(write.key, write.parent, list(write.tokens)) for write in writes] == [
        (key_of(0, 0), key_of(0, -1), [0]),
        (key_of(0, 1), key_of(0, 0), [0]),
    ]
    assert {(write.fingerprint, write.owner) for write in writes} == {("f", OWNER)}
    assert writes[0].pages == [staged.pages[0], staged.pages[2]]
    host.release(staged.ticket)
    while host.writes:
        host.finish_write()
    host.core.locations.on_checked(None, "life")
    assert host.tell() == {OWNER: 2}
    host.evict_all()
    assert host.stage(0, 2).num_blocks == 2
    assert host.core.counts.num_pages_fetched == 2 * LAYERS


def test_a_block_whose_pages_did_not_all_come_is_not_written(host: Host) -> None:
    host.stage(0, 1, offer=FROM_PEER)
    host.finish_fetch(outcome=LoadOutcome.FAILED)
    assert not host.writes


def test_what_continues_nothing_here_is_kept_once_it_does(host: Host) -> None:
    first = host.stage(0, 2, offer=FROM_PEER)
    host.finish_fetch(outcome=LoadOutcome.MISSING, change=lambda facts: facts)
    host.finish_fetches()
    assert [write.key for write in host.writes] == []
    host.commit([(0, 0)], host.lease(LAYERS))
    again = host.stage(0, 2)
    assert again.num_blocks == 2
    assert [write.key for write in host.writes] == [key_of(0, 0), key_of(0, 1)]
    for ticket in (first.ticket, again.ticket):
        host.release(ticket)
    while host.writes:
        host.finish_write()
    host.check_pages_conserved()


def test_a_full_disk_leaves_it_in_the_arena(host: Host) -> None:
    staged = host.stage(0, 1, offer=FROM_PEER)
    host.finish_fetches()
    host.finish_write(WriteOutcome.FULL)
    host.finish_write(WriteOutcome.FULL)
    host.release(staged.ticket)
    again = host.stage(0, 1)
    assert (staged.coming_from, again.num_here, again.coming_from) == ("peer", 1, None)
    host.check_pages_conserved()


LIES: list[Callable[[PageFacts], PageFacts | None]] = [
    lambda facts: None,
    lambda facts: replace(facts, tokens=[7]),
    lambda facts: replace(facts, tokens=[]),
    lambda facts: replace(facts, tokens=[0] * 65),
    lambda facts: replace(facts, parent=key_of(5, 5)),
    lambda facts: replace(facts, num_layers=LAYERS + 1),
]


@pytest.mark.parametrize("lie", LIES)
def test_a_peer_that_lies_is_not_believed(
    host: Host, lie: Callable[[PageFacts], PageFacts | None]
) -> None:
    host.stage(0, 1, offer=FROM_PEER)
    host.finish_fetch(change=lie)
    assert not host.writes and key_of(0, 0) not in host.arena.blocks
    assert host.core.counts.num_pages_corrupt
    assert host.stage(0, 1).num_blocks == 0


def test_what_the_first_page_said_stays_said(host: Host) -> None:
    """It alone was held against the key."""
    host.stage(0, 2, offer=FROM_PEER)
    first: list[PageFacts] = []

    def change_its_mind(facts: PageFacts) -> PageFacts:
        if not first or (facts.tokens == first[0].tokens and facts.parent == first[0].parent):
            is_first = not first
            first.append(facts)
            return facts if is_first else replace(facts, parent=key_of(5, 5), owner=OWNER)
        return facts

    while host.fetches[PEERS[0]]:
        host.finish_fetch(change=change_its_mind)
    assert [write.parent for write in host.writes] == [key_of(0, -1), key_of(0, 0)]
    assert {write.owner for write in host.writes} == {NO_OWNER}


def test_hosts_without_number_are_not_remembered(host: Host) -> None:
    for number in range(SOURCES_MAX + 3):
        host.loading.peer(HostId(f"h{number}"))
    assert largest_table(host.loading) == SOURCES_MAX + 1, "and the disk"
    assert host.loading.peer(PEERS[0]) is host.loading.peer(PEERS[0])


def test_once_a_peer_breaks_off_nobody_waits_for_the_rest(host: Host) -> None:
    """But for who waits for others."""
    host.stage(1, 1, offer=RemotePrefix(PEERS[1], 1))
    staged = host.stage(0, 4, offer=FROM_PEER)
    num_asked = len(asked(list(host.fetches[PEERS[0]])))
    assert num_asked < 4 * LAYERS, "some still waits here"
    host.finish_fetch(outcome=LoadOutcome.FAILED)
    waiting = [page for page in staged.pages if host.words[page][1] is PageState.FILLING]
    assert len(waiting) <= num_asked, "what it was asked for may come yet"
    assert host.core.peers.is_avoided(PEERS[0], host.now_ns)
    assert not host.core.peers.is_avoided(PEERS[1], host.now_ns)
    host.finish_fetches()
    host.release(staged.ticket)
    host.check_pages_conserved()


def test_a_damaged_page_costs_its_block_alone(host: Host) -> None:
    staged = host.stage(0, 3, offer=FROM_PEER)
    host.finish_fetch(outcome=LoadOutcome.CORRUPT)
    host.finish_fetches()
    assert not host.core.peers.is_avoided(PEERS[0], host.now_ns)
    assert key_of(0, 0) not in host.arena.blocks and key_of(0, 2) in host.arena.blocks
    host.release(staged.ticket)
    host.check_pages_conserved()


def test_what_was_computed_takes_the_place_of_what_may_come(host: Host) -> None:
    staged = host.stage(0, 1, offer=FROM_PEER)
    host.commit([(0, 0)], host.lease(LAYERS))
    assert [write.key for write in host.writes] == [key_of(0, 0)]
    own = host.writes[0].pages
    assert set(own).isdisjoint(staged.pages)
    host.finish_fetches()
    assert len(host.writes) == 1, "it is written once"
    host.finish_write()
    assert host.stage(0, 1).pages == own
    host.release(staged.ticket)
    host.check_pages_conserved()


def test_what_has_come_is_not_taken_over_again(host: Host) -> None:
    host.stage(0, 1, offer=FROM_PEER)
    host.finish_fetches()
    host.commit([(0, 0)], host.lease(LAYERS))
    assert len(host.writes) == 1


def test_what_is_asked_of_the_disk_now_is_not_asked_of_the_peer_any_more(host: Host) -> None:
    """The peer's queue still names it."""
    host.stage(1, 3, offer=FROM_PEER)  # keeps the peer busy
    waiting = host.stage(0, 1, offer=FROM_PEER)
    host.release(waiting.ticket)
    host.commit([(0, 0)], host.lease(LAYERS))
    while host.writes:
        host.finish_write()
    host.evict_all()
    host.stage(0, 1, offer=FROM_PEER)
    assert {key for key, _ in asked(list(host.loads))} == {key_of(0, 0)}
    fetched = []
    while host.fetches[PEERS[0]]:
        fetched += host.finish_fetch()
    assert key_of(0, 0) not in {page.key for page in fetched}
    while host.loads:
        host.finish_load()
    host.check_pages_conserved()


def test_what_was_deleted_does_not_come_back(host: Host) -> None:
    staged = host.stage(0, 2, offer=FROM_PEER)
    host.delete([], OWNER)
    host.finish_fetches(OWNER)
    assert not host.writes and not host.arena.blocks
    host.release(staged.ticket)
    host.check_pages_conserved()


def test_what_is_deleted_while_it_comes_goes(host: Host) -> None:
    host.stage(0, 2, offer=FROM_PEER)
    host.finish_fetch(owner=OWNER)
    assert host.delete([], OWNER) == 2
    host.finish_fetches(OWNER)
    while host.writes:
        host.finish_write()
    assert not host.arena.blocks and not len(host.core.disk)


def test_a_host_tells_what_it_has_of_this_shape(host: Host) -> None:
    host.store([(0, 0), (0, 1)])
    host.commit([(0, 2)], host.lease(LAYERS))  # on its way to the disk
    keys = [key_of(0, index) for index in range(4)]
    assert host.core.on_locate(keys, LAYERS, PAGE_BYTES) == 3
    assert host.core.on_locate(keys[1:], LAYERS, PAGE_BYTES) == 2
    assert host.core.on_locate(keys[3:], LAYERS, PAGE_BYTES) == 0
    assert host.core.on_locate(keys, LAYERS + 1, PAGE_BYTES) == 0
    assert host.core.on_locate(keys, LAYERS, PAGE_BYTES + 1) == 0
    host.delete([(0, 2)])
    assert host.core.find_written(key_of(0, 2)) is None
    assert host.core.on_locate(keys, LAYERS, PAGE_BYTES) == 2


def test_who_has_no_more_is_not_asked(host: Host) -> None:
    host.store([(0, 0), (0, 1)])
    keys = [key_of(0, index) for index in range(3)]
    near, far = HostId("near"), HostId("far")

    def whom(
        kv_at: dict[HostId, int], keys: list[BlockKey] = keys, before: int = 0
    ) -> list[HostId]:
        return host.core.whom_to_ask(keys, before, PAGE_BYTES, kv_at, host.now_ns)

    assert whom({near: 3, far: 9}) == [far, near]
    assert whom({near: 2, far: 3}) == [far]
    assert whom({near: 2, far: 3}, keys[1:], 1) == [far]
    assert whom({near: 4, far: 3}, keys, 2) == []
    assert whom({far: 9}, keys[:2]) == [], "all of it is here"
    assert whom({far: -1, near: 10**30}) == []
    assert host.core.whom_to_ask(keys, 0, 1, {far: 9}, 0) == [], "no such pages"


def test_hosts_that_fail_are_left_alone_for_ever_longer() -> None:
    peers, host_id, now_ns = Peers(HostId("own")), HostId("h"), 0
    assert peers.worth_asking({HostId("own"): 9}, 0, now_ns) == []
    for number in range(12):
        peers.on_failed(host_id, now_ns)
        peers.on_failed(host_id, now_ns)  # of what was asked for before
        wait_ns = min(RETRY_NS << number, RETRY_MAX_NS)
        assert peers.worth_asking({host_id: 9}, 0, now_ns + wait_ns - 1) == []
        now_ns += wait_ns
        assert peers.worth_asking({host_id: 9}, 0, now_ns) == [host_id]
    peers.on_good(host_id)
    peers.on_failed(host_id, now_ns)
    assert not peers.is_avoided(host_id, now_ns + RETRY_NS)
    many = {HostId(f"h{number}"): number for number in range(1, 9)}
    assert peers.worth_asking(many, 0, now_ns) == [HostId("h8"), HostId("h7")][:ASKED_MAX]


def test_what_follows_the_pool_s_part_is_kept_only_where_that_part_is(host: Host) -> None:
    """A turn asks for what its pool lacks: the first of that is not the session's first block."""
    host.stage(0, 2, offer=FROM_PEER, first=2)
    host.finish_fetches(OWNER)
    assert [block.depth for block in host.arena.blocks.values()] == [2, 3]
    assert not host.writes
    host.commit([(0, 0), (0, 1)], host.lease(2 * LAYERS))
    assert [write.key for write in host.writes] == [key_of(0, 0), key_of(0, 1)]
    host.stage(0, 2, first=2)
    assert [write.key for write in host.writes][2:] == [key_of(0, 2), key_of(0, 3)]


def test_what_came_before_what_it_continues_is_kept_when_that_is_computed(host: Host) -> None:
    host.stage(0, 2, offer=FROM_PEER)
    while host.fetches[PEERS[0]]:
        host.finish_fetch(change=lambda facts: None if facts.parent == key_of(0, -1) else facts)
    assert not host.writes and key_of(0, 1) in host.arena.blocks
    host.commit([(0, 0), (0, 1)], host.lease(2 * LAYERS))
    assert [write.key for write in host.writes] == [key_of(0, 0), key_of(0, 1)]


def test_a_host_that_gives_nothing_right_is_left_alone(host: Host) -> None:
    host.stage(0, 1, offer=FROM_PEER)
    host.finish_fetch(change=LIES[0])
    assert host.core.peers.is_avoided(PEERS[0], host.now_ns)


def test_a_host_that_came_back_elsewhere_is_not_blamed_for_what_it_left(host: Host) -> None:
    staged = host.stage(0, 4, offer=FROM_PEER)
    waiting = [block for block in host.arena.blocks.values() if block.queued]
    assert waiting
    host.finish_fetch(outcome=LoadOutcome.FAILED, is_current=False)
    assert not host.core.peers.is_avoided(PEERS[0], host.now_ns)
    host.finish_fetches()
    host.release(staged.ticket)
    host.check_pages_conserved()


def test_who_waits_for_what_is_refused_sees_it(host: Host) -> None:
    staged = host.stage(0, 1, offer=FROM_PEER)
    host.finish_fetch(change=LIES[1])
    assert set(states(host, staged.pages)) == {PageState.BAD}


def test_another_host_gives_what_one_did_not(host: Host) -> None:
    """Though some is still on its way from that one."""
    staged = host.stage(0, 4, offer=FROM_PEER)
    keys = [key_of(0, index) for index in range(4)]
    host.finish_fetch(outcome=LoadOutcome.FAILED)
    assert host.fetches[PEERS[0]], "a second batch is under way"
    asked = host.core.whom_to_ask(keys, 0, PAGE_BYTES, {PEERS[1]: 4}, host.now_ns)
    assert asked == [PEERS[1]]
    again = host.stage(0, 4, offer=RemotePrefix(PEERS[1], 4))
    assert again.num_blocks == 4 and host.fetches[PEERS[1]]
    host.finish_fetches(OWNER)
    for ticket in (staged.ticket, again.ticket):
        host.release(ticket)
    assert sorted(write.key for write in host.writes) == sorted(keys), "whatever came first"
    while host.writes:
        host.finish_write()
    host.check_pages_conserved()


def test_a_broken_transfer_says_nothing_of_the_link(host: Host) -> None:
    host.stage(0, 2, offer=FROM_PEER)
    host.finish_fetch(duration_ns=1000)
    speed = host.loading.peer(PEERS[0]).speed
    before = speed.bytes_per_s
    host.finish_fetch(outcome=LoadOutcome.FAILED, duration_ns=10**10)
    assert speed.bytes_per_s == before


def test_deletions_are_remembered_for_a_while() -> None:
    deleted, other = Deleted(), OwnerKey(bytes(16))
    deleted.add(OWNER, 0)
    deleted.expire(DELETED_NS)
    assert OWNER in deleted
    deleted.add(OWNER, DELETED_NS)
    deleted.expire(2 * DELETED_NS)
    assert OWNER in deleted and other not in deleted
    deleted.expire(2 * DELETED_NS + 1)
    assert OWNER not in deleted


def test_the_one_who_has_most_gives() -> None:
    near, far = HostId("near"), HostId("far")
    assert most_offered([(near, 2), (far, 3)], 2) == (far, 3)
    assert most_offered([(near, 2)], 2) is None
    assert most_offered([], 0) is None


def test_of_a_slow_link_little_is_asked_at_once() -> None:
    disk, peer = Source(), Source(PEERS[0])
    assert disk.batch_bytes(1 << 23) == 1 << 23
    assert peer.batch_bytes(1 << 23) == FIRST_BATCH_BYTES
    peer.speed.on_read(10**6, 10**9)
    assert peer.batch_bytes(1 << 23) == 10**6 * PEER_BATCH_NS // 10**9
    peer.speed.on_read(10**15, 10**9)
    assert peer.batch_bytes(1 << 23) == 1 << 23


def test_no_word_is_set_twice(host: Host) -> None:
    """What was abandoned belongs to another block by then."""
    staged = host.stage(0, 1, offer=FROM_PEER)
    host.release(staged.ticket)
    host.finish_fetch(outcome=LoadOutcome.FAILED)
    num_before = len(host.effects)
    host.evict_all()
    assert all(isinstance(effect, SetWords) for effect in host.effects[num_before:])
    host.check_pages_conserved()
