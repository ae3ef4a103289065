"""How long KV is kept that has an expiry of its tenant's, or of its session's own."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.kvstore.core.base.deadlines import STALE_MAX, Deadlines
from services.kvstore.core.base.effects import TouchBlocks, WriteOutcome
from services.kvstore.core.base.events import RemotePrefix
from services.kvstore.core.base.runs import Run, run_of
from services.kvstore.core.disk.found_blocks import FoundBlocks
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.object_tier import ObjectTier
from services.kvstore.tiers.disk.scan import pack_stamp, read_stamps
from shared.expiry import EXPIRY_S_MAX, rounded_expiry_s
from shared.ids import HostId, SessionId, TenantId
from shared.owners import NO_OWNER, OwnerKey, owner_key
from tests.tables import largest_table
from tests.unit.kvstore.core.host import (
    BLOCK_BYTES,
    LAYERS,
    PAGE_BYTES,
    PEERS,
    Host,
    key_of,
)

S, T = (owner_key(TenantId("t"), SessionId(name)) for name in "st")
SECOND = 1_000_000_000
LONGEST_S = rounded_expiry_s(EXPIRY_S_MAX)


def chain(sequence: int, num_blocks: int) -> list[tuple[int, int]]:
    return [(sequence, index) for index in range(num_blocks)]


@pytest.fixture
def host() -> Host:
    host = Host()
    host.open()
    return host


def on_disk(host: Host, now_ns: int) -> set[bytes]:
    host.now_ns = now_ns
    host.perform(host.core.on_tick(now_ns))
    return set(host.core.disk.keys)


def test_a_session_s_own_expiry_holds_in_place_of_the_disk_s(host: Host) -> None:
    host.store(chain(0, 2), S)
    host.store(chain(1, 2), T, expiry_s=2)
    host.store(chain(2, 1), NO_OWNER, expiry_s=3)
    kept = {key_of(1, 0), key_of(1, 1), key_of(2, 0)}
    assert on_disk(host, SECOND) == kept, "the disk's own is 1 us"
    assert on_disk(host, 2 * SECOND) == kept
    assert on_disk(host, 2 * SECOND + 1) == {key_of(2, 0)}
    assert on_disk(host, 3 * SECOND + 1) == set()
    assert not host.arena.blocks


def test_what_a_turn_says_last_is_said_of_its_whole_session(host: Host) -> None:
    host.store(chain(0, 2), S, expiry_s=1000)
    host.store([(0, 2)], S, expiry_s=1)
    assert TouchBlocks([key_of(0, 1), key_of(0, 0)], 1) in host.effects
    host.store([(0, 3)], S, expiry_s=1)
    assert sum(isinstance(effect, TouchBlocks) for effect in host.effects) == 1, "once"
    assert on_disk(host, SECOND + 1) == set()


def test_a_write_that_is_late_does_not_set_its_session_back(host: Host) -> None:
    host.commit(chain(0, 1), host.lease(LAYERS), owner=S, expiry_s=60)
    host.commit([(0, 1)], host.lease(LAYERS), owner=S, expiry_s=5000)
    host.finish_write(WriteOutcome.FAILED)
    while host.writes:
        host.finish_write()
    assert TouchBlocks([key_of(0, 0)], 5000) in host.effects, "it was written with 60"
    assert len(on_disk(host, 4000 * SECOND)) == 2
    assert not largest_table(host.writing)


def test_a_turn_of_which_all_is_here_says_it_too(host: Host) -> None:
    host.store(chain(0, 2), S, expiry_s=1)
    host.store(chain(0, 2), S, expiry_s=5)
    assert len(on_disk(host, 4 * SECOND)) == 2


def test_use_is_noted_in_time_with_the_expiry_that_it_prolongs(host: Host) -> None:
    host.store(chain(0, 1), S, expiry_s=1000)
    host.now_ns = 200 * SECOND
    host.release(host.stage(0, 1).ticket)
    assert TouchBlocks([key_of(0, 0)], 1000) in host.effects, "later than the disk's own says"
    assert len(on_disk(host, 1200 * SECOND)) == 1


def test_what_came_from_another_host_is_kept_as_its_session_is_here(host: Host) -> None:
    host.store([(0, 0)], S, expiry_s=7)
    host.stage(0, 2, offer=RemotePrefix(PEERS[0], 2))
    host.finish_fetches(S)
    while host.writes:
        host.finish_write()
    assert TouchBlocks([key_of(0, 1)], 7) in host.effects
    assert len(on_disk(host, 6 * SECOND)) == 2
    host.store([(0, 2)], S)
    assert on_disk(host, 8 * SECOND) == set()


def test_an_expiry_outlives_a_restart(host: Host) -> None:
    found = [
        StoredBlock(key_of(0, 0), LAYERS, PAGE_BYTES, BLOCK_BYTES, 0, 0, S, expiry_ns=9 * SECOND),
        StoredBlock(key_of(1, 0), LAYERS, PAGE_BYTES, BLOCK_BYTES, 0, 0, T),
    ]
    host.perform(host.core.on_disk_found(FoundBlocks.of(found), 5 * SECOND))
    assert set(host.core.disk.keys) == {key_of(0, 0)}


def test_a_kill_while_an_expiry_is_written_down_leaves_a_session_one(host: Host) -> None:
    """The latest one, which is with what was used last; blocks without an owner keep theirs."""

    def stored(sequence: int, used_s: int, expiry_s: int, owner: OwnerKey) -> StoredBlock:
        return StoredBlock(
            key_of(sequence, 0), LAYERS, PAGE_BYTES, BLOCK_BYTES, used_s * SECOND, 0, owner,
            expiry_ns=expiry_s * SECOND,
        )  # fmt: skip

    found = [
        stored(0, 3, 9, S), stored(1, 2, 90, S), stored(2, 2, 70, T), stored(3, 1, 60, T),
        stored(4, 1, 50, NO_OWNER), stored(5, 2, 40, NO_OWNER),
    ]  # fmt: skip
    host.perform(host.core.on_disk_found(FoundBlocks.of(found), 4 * SECOND))
    disk = host.core.disk
    kept = [disk.get(key_of(sequence, 0)) for sequence in range(6)]
    expected_s = [9, 9, 70, 70, 50, 40]
    assert [block and block.expiry_ns for block in kept] == [s * SECOND for s in expected_s]
    assert (disk.expiry_ns_of(S), disk.expiry_ns_of(T)) == (9 * SECOND, 70 * SECOND)


@given(st.integers(1, EXPIRY_S_MAX))
def test_an_expiry_is_rounded_up_by_little(seconds: int) -> None:
    assert seconds <= rounded_expiry_s(seconds) <= seconds * 1.125


@given(st.integers(0, EXPIRY_S_MAX))
@example(EXPIRY_S_MAX)
def test_whatever_may_be_asked_for_is_found_again_after_a_restart(seconds: int) -> None:
    rounded = rounded_expiry_s(seconds)
    assert read_stamps([pack_stamp(7, rounded)]).tolist() == [(7, rounded)]
    named = run(S, 4, rounded)
    assert run_of(named.name) == named


def test_there_are_few_expiries() -> None:
    powers = [1 << power for power in range(25)]
    asked = [each + more for each in powers for more in range(0, each, 1 + each // 64)]
    rounded = set(map(rounded_expiry_s, asked))
    assert len(rounded) <= 16 + 8 * 21


def run(owner: OwnerKey, depth: int, expiry_s: int = 0, before: OwnerKey = NO_OWNER) -> Run:
    return Run(owner, depth, 2, 64, before, bytes(6), HostId("h-1"), expiry_s)


def test_a_run_s_name_tells_the_expiry_of_its_session() -> None:
    for each in (run(S, 4), run(S, 4, 3600), replace(run(S, 4, 3600), is_packed=True)):
        assert run_of(each.name) == each
    assert "/4-2-64-" in run(S, 4).name, "as earlier releases wrote it"
    wrong = run(S, 4, 3600).name
    for number in ("e", "e0", "e-1", "ee", "e1zz", "ze1", "y", f"e{LONGEST_S + 1}"):
        assert run_of(wrong.replace("e3600-", f"{number}-")) is None


def drop(tier: ObjectTier, now_ns: int) -> list[Run]:
    gone = tier.surplus(now_ns, 100)
    for each in gone:
        tier.remove(each)
    return gone


def test_the_object_store_keeps_sessions_for_their_own_time_and_by_use_where_room_lacks() -> None:
    tier = ObjectTier(25, expiry_ns=10)
    tier.add(run(S, 0), 10, 1)
    tier.add(run(T, 0, 1), 10, 2)
    assert drop(tier, 11) == []
    assert drop(tier, 12) == [run(S, 0)]
    tier.add(run(S, 0), 10, 3)
    tier.add(run(S, 1), 10, 3)
    assert drop(tier, 12) == [run(T, 0, 1)], "the room is by use alone"
    assert tier.expiry_ns_of(T) == 0


def test_a_session_that_is_let_go_of_leaves_the_object_store_soon() -> None:
    tier = ObjectTier(100, expiry_ns=1000)
    tier.add(run(S, 0), 10, 1)
    tier.set_expiry(S, 5, 3)
    assert drop(tier, 8) == []
    tier.set_expiry(S, 50, 8)
    assert drop(tier, 9) == []
    assert drop(tier, 59) == [run(S, 0)]
    assert drop(tier, 5000) == []


def test_a_run_begun_before_its_session_was_told_another_expiry_changes_nothing() -> None:
    tier = ObjectTier(25, expiry_ns=1000)
    tier.add(run(S, 0, 60), 10, 1)
    tier.add(run(T, 0), 10, 2)
    tier.set_expiry(S, 7000 * SECOND, 3)
    tier.add(run(S, 1, 60), 10, 4)
    assert tier.expiry_ns_of(S) == 7000 * SECOND
    tier.add(run(S, 2, 90), 0, 5, is_listed=True)
    assert tier.expiry_ns_of(S) == 90 * SECOND


def test_who_is_told_another_expiry_is_the_last_to_make_room() -> None:
    tier = ObjectTier(15, expiry_ns=1000)
    tier.add(run(S, 0), 10, 1)
    tier.add(run(T, 0), 10, 2)
    tier.set_expiry(S, 500, 3)
    assert drop(tier, 4) == [run(T, 0)]


def test_what_begins_another_session_there_is_kept_as_long_as_that() -> None:
    tier = ObjectTier(100, expiry_ns=1000)
    tier.add(run(T, 0), 10, 1)
    tier.add(run(S, 1, before=T), 10, 1)
    tier.set_expiry(T, 5, 2)
    assert drop(tier, 900) == []
    tier.set_expiry(S, 100, 900)
    assert drop(tier, 1000) == []
    assert drop(tier, 1002) == [run(S, 1, before=T), run(T, 0)], "the deepest first"
    assert not tier._after


def test_what_was_kept_for_another_session_goes_with_it() -> None:
    tier = ObjectTier(100, expiry_ns=1000)
    tier.add(run(T, 0), 10, 1)
    tier.add(run(S, 1, before=T), 10, 1)
    tier.set_expiry(T, 5, 2)
    assert drop(tier, 100) == [], "kept until the other one expires"
    tier.forget(S)
    assert drop(tier, 101) == [run(T, 0)]


def test_two_sessions_that_begin_each_other_go_all_the_same() -> None:
    tier = ObjectTier(100, expiry_ns=1000)
    tier.add(run(T, 1, before=S), 10, 1)
    tier.add(run(S, 2, before=T), 10, 1)
    assert drop(tier, 1001) == []
    assert {each.owner for each in drop(tier, 1002)} == {S, T}


def test_deadlines_take_no_more_room_than_there_are_sessions() -> None:
    deadlines = Deadlines[OwnerKey]()
    for at_ns in range(10 * STALE_MAX, 0, -1):
        deadlines.put(S, at_ns)
    assert largest_table(deadlines) <= STALE_MAX + 2
    assert deadlines.take(1) is None
    assert deadlines.take(2) == S
    assert deadlines.take(1 << 60) is None
    deadlines.put(T, 1)
    deadlines.remove(T)
    assert deadlines.take(1 << 60) is None
