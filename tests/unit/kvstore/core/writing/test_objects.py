"""What is written to the object store, when, and what leaves it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.core.base.backoff import RETRY_MAX_NS, RETRY_NS
from services.kvstore.core.base.effects import DropRuns, DropSession, Effect, SaveOutcome, SaveRun
from services.kvstore.core.base.runs import BLOCKS_MAX, Run, named
from services.kvstore.core.base.store_limits import Counts, Limits
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.writing.objects import DROPPED_MAX, Objects
from services.kvstore.core.writing.saving import RUN_BYTES_MAX, RUNS_MAX
from shared.blocks import BlockKey, chain_keys, root_key
from shared.ids import HostId, SessionId, TenantId
from shared.locations import objects_of
from shared.owners import NO_OWNER, OwnerKey, owner_key

MIB = 1024**2
SECOND = 1_000_000_000
H1 = HostId("h1")
S, T, U = (owner_key(TenantId("t"), SessionId(name)) for name in "stu")
ROOT = root_key("f", TenantId("t"))


def chain(num: int, seed: int = 0) -> list[BlockKey]:
    return chain_keys(ROOT, [seed + 1] + [0] * (64 * num - 1))


@dataclass
class Tier:
    """A disk and the object store behind it; a test decides when writes end."""

    limits: Limits
    now_ns: int = 0
    block_bytes: int = MIB
    saves: list[SaveRun] = field(default_factory=list)
    dropped: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = DiskTier(self.limits.disk_bytes_max)
        self.objects = Objects(self.limits, self.disk, H1, Counts())

    def hear(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SaveRun):
                self.saves.append(effect)
            elif isinstance(effect, DropRuns):
                self.dropped += effect.runs

    def store(
        self,
        keys: list[BlockKey],
        owner: OwnerKey = S,
        parent: BlockKey = ROOT,
        *,
        is_saved: bool = False,
    ) -> None:
        for key in keys:
            block = StoredBlock(
                key, 2, 64, self.block_bytes, self.now_ns, self.now_ns, owner, parent,
                is_saved=is_saved,
            )  # fmt: skip
            self.disk.add(block)
            self.objects.on_stored(block, self.now_ns)
            parent = key

    def tick(self, after_ns: int = 0) -> list[SaveRun]:
        """What begins, so much later."""
        self.now_ns += after_ns
        before = len(self.saves)
        self.hear(self.objects.on_tick(self.now_ns))
        return self.saves[before:]

    def end(self, save: SaveRun, outcome: SaveOutcome = SaveOutcome.SAVED) -> None:
        self.hear(self.objects.on_saved(save.run, outcome, self.now_ns))

    def end_all(self) -> None:
        at = 0
        while at < len(self.saves):
            self.end(self.saves[at])
            at += 1


def tier(**limits: int | float) -> Tier:
    values = {"disk_bytes_max": 1 << 50, "objects_rest_ns": 10 * SECOND, **limits}
    made = Tier(Limits(expiry_ns=1 << 60, noted_ns=1, has_objects=True, **values))  # type: ignore[arg-type]
    made.hear(made.objects.on_all_listed(0))
    return made


def test_a_session_is_written_when_it_rests_and_only_what_is_new_of_it() -> None:
    made = tier()
    keys = chain(5)
    made.store(keys[:3])
    assert not made.tick(9 * SECOND)
    (save,) = made.tick(SECOND)
    assert save.keys == keys[:3]
    run = save.run
    assert (run.owner, run.depth, run.num_blocks, run.before, run.host_id) == (
        S,
        0,
        3,
        NO_OWNER,
        H1,
    )
    made.end(save)
    assert made.objects.tier.num_bytes == 3 * MIB
    made.store(keys[3:], parent=keys[2])
    (save,) = made.tick(10 * SECOND)
    assert (save.keys, save.run.depth, save.run.before) == (keys[3:], 3, S)
    made.end(save)
    assert not made.tick(1000 * SECOND)
    assert not made.objects.num_sessions_unsaved
    assert made.objects.tier.count_all_leading() == {S: 5}


def test_nothing_is_written_before_it_is_known_what_is_there() -> None:
    made = Tier(Limits(disk_bytes_max=1 << 50, expiry_ns=1 << 60, noted_ns=1, has_objects=True))
    keys = chain(3)
    made.store(keys)
    assert not made.tick(1000 * SECOND)
    there = Run(S, 0, 2, 64, NO_OWNER, b"".join(map(named, keys[:2])), H1)
    made.objects.on_listed(there, 2 * MIB, 0)
    made.hear(made.objects.on_all_listed(made.now_ns))
    assert [save.keys for save in made.saves] == [keys[2:]]


def test_a_long_session_goes_in_runs_one_after_the_other() -> None:
    made = tier()
    made.block_bytes = RUN_BYTES_MAX // 4
    keys = chain(10)
    made.store(keys)
    (first,) = made.tick(10 * SECOND)
    assert first.keys == keys[:4]
    assert not made.tick(), "its next one waits for this one"
    made.end_all()
    assert [save.keys for save in made.saves] == [keys[:4], keys[4:8], keys[8:]]
    small = tier()
    small.block_bytes = 1
    small.store(chain(BLOCKS_MAX + 1))
    assert [save.run.num_blocks for save in small.tick(10 * SECOND)] == [BLOCKS_MAX]


def test_the_longest_resting_goes_first_and_few_go_at_once() -> None:
    made = tier()
    for number, owner in enumerate((S, T, U)):
        made.store(chain(2, number), owner)
        made.now_ns += SECOND
    made.store(chain(3, 0)[2:], S, chain(2, 0)[1])  # it does not rest any more
    begun = made.tick(10 * SECOND)
    assert [save.run.owner for save in begun] == [T, U] and len(begun) == RUNS_MAX
    made.end(begun[0])
    assert made.saves[-1].run.owner == S


def test_nobody_waits_for_rest_while_the_disk_is_nearly_full() -> None:
    made = tier(disk_bytes_max=10 * MIB)
    made.store(chain(8))
    assert not made.tick()
    made.store(chain(1, 1), T)
    assert [save.run.owner for save in made.tick()] == [S, T]


def test_a_budget_is_kept() -> None:
    made = tier(objects_bytes_per_s=float(MIB))
    for number, owner in enumerate((S, T)):
        made.store(chain(3, number), owner)
    (first,) = made.tick(10 * SECOND)
    assert not made.tick(SECOND)
    made.end(first)
    assert len(made.saves) == 1
    assert made.tick(SECOND), "a second was saved up, and three are owed"


def test_a_write_that_fails_is_tried_again_ever_later() -> None:
    made = tier(objects_rest_ns=0)
    made.store(chain(2))
    (save,) = made.tick()
    waits = []
    for _ in range(9):
        made.end(save, SaveOutcome.FAILED)
        wait_ns = 0
        while not (begun := made.tick(RETRY_NS // 2)):
            wait_ns += RETRY_NS // 2
        waits.append(wait_ns + RETRY_NS // 2)
        (save,) = begun
    assert waits[:3] == [RETRY_NS, 2 * RETRY_NS, 4 * RETRY_NS] and waits[-1] == RETRY_MAX_NS
    made.end(save)
    assert made.objects.tier.num_bytes == 2 * MIB


def test_what_another_session_made_stays_its_own_and_nobodys_goes_along() -> None:
    made = tier()
    keys = chain(6)
    made.store(keys[:2], T)
    made.store(keys[2:4], NO_OWNER, keys[1])
    made.store(keys[4:], S, keys[3])
    first, second = made.tick(10 * SECOND)
    assert (first.run.owner, first.keys) == (T, keys[:2])
    assert (second.run.owner, second.keys, second.run.before) == (S, keys[2:], T)
    made.end_all()
    assert {run.owner for run in made.objects.tier.runs_of(S)} == {S, T}


def test_a_deleted_session_does_not_come_back_with_what_was_being_written() -> None:
    made = tier()
    made.store(chain(2))
    (save,) = made.tick(10 * SECOND)
    effects: list[Effect] = []
    made.objects.on_deleted(S, effects)
    assert effects == [DropSession(S)]
    for key in chain(2):
        made.disk.remove(key)
    made.end(save)
    assert not made.objects.tier.num_bytes and not made.tick(100 * SECOND)
    assert made.objects.may_have(S, {}) == 0


def test_the_oldest_sessions_leave_from_their_ends() -> None:
    made = tier(objects_bytes_max=6 * MIB, objects_rest_ns=0)
    keys = chain(4)
    made.store(keys[:2])
    made.end(made.tick()[0])
    made.store(keys[2:], parent=keys[1])
    made.end(made.tick()[0])
    made.now_ns += SECOND
    made.store(chain(2, 1), T)
    made.end(made.tick()[0])
    assert not made.dropped
    made.now_ns += SECOND
    made.store(chain(1, 2), U)
    made.end(made.tick()[0])
    assert [(run.owner, run.depth) for run in made.dropped] == [(S, 2)]
    assert not made.tick(100 * SECOND), "it is not written again for nothing"
    assert made.objects.tier.count_all_leading() == {S: 2, T: 2, U: 1}


def test_what_is_larger_than_its_room_is_not_written_again_and_again() -> None:
    made = tier(objects_bytes_max=3 * MIB, objects_rest_ns=0)
    made.block_bytes = RUN_BYTES_MAX // 2
    made.store(chain(6))
    for _ in range(20):
        made.tick(SECOND)
        made.end_all()
    assert len(made.saves) <= 3 and not made.objects.num_sessions_unsaved


def test_what_cannot_be_read_waits_and_what_is_missing_does_not() -> None:
    made = tier()
    keys = chain(3)
    made.store(keys)
    (save,) = made.tick(10 * SECOND)
    made.end(save, SaveOutcome.UNREAD)
    assert not made.tick(9 * SECOND)
    (save,) = made.tick(SECOND)
    made.disk.remove(keys[2])
    made.end(save, SaveOutcome.MISSING)
    assert made.saves[-1].keys == keys[:2]


def test_what_nobody_used_for_long_expires_with_all_its_runs() -> None:
    made = tier(objects_expiry_ns=100 * SECOND, objects_rest_ns=0)
    for number, owner in enumerate((S, T)):
        made.store(chain(2, number), owner)
    made.tick()
    made.end_all()
    made.objects.on_used(T, 60 * SECOND)
    made.tick(101 * SECOND)
    assert {run.owner for run in made.dropped} == {S}
    assert made.objects.tier.owners == [T]


def test_a_session_keeps_what_begins_it_in_use() -> None:
    made = tier(objects_expiry_ns=100 * SECOND, objects_rest_ns=0)
    keys = chain(4)
    made.store(keys[:2], T)
    made.store(keys[2:], S, keys[1])
    made.tick()
    made.end_all()
    made.objects.on_used(S, 60 * SECOND)
    made.tick(101 * SECOND)
    assert not made.dropped


OWNERS = st.sampled_from([S, T, U])


@given(
    st.lists(
        st.tuples(
            OWNERS, st.one_of(st.just(NO_OWNER), OWNERS), st.sampled_from([1, 4, 16]),
            st.integers(0, 8),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_a_tick_leaves_only_expired_sessions_that_begin_others(
    saved: list[tuple[OwnerKey, OwnerKey, int, int]],
) -> None:
    """What goes may be all that what begins it was kept for: because it expires, too, sooner than
    it was to, or for room.
    """
    made = tier(objects_bytes_max=4 * MIB)
    there = made.objects.tier
    for depth, (owner, before, expiry_s, pause_s) in enumerate(saved):
        there.add(Run(owner, depth, 2, 64, before, bytes(6), H1, expiry_s), MIB, made.now_ns)
        there.set_expiry(owner, expiry_s * SECOND, made.now_ns)
        made.tick(pause_s * SECOND)
        runs = [run for each in there.owners for run in there.runs_of(each)]
        begin = {run.before for run in runs if run.before != run.owner}
        for each in there.owners:
            is_over = there.used_at_ns(each) + there.expiry_ns_of(each) < made.now_ns
            assert not is_over or each in begin


def test_after_a_restart_what_begins_a_session_is_as_young_as_that_is() -> None:
    made = tier(objects_expiry_ns=100 * SECOND)
    made.objects.is_listed = False
    keys = chain(4)
    first = Run(T, 0, 2, 64, NO_OWNER, b"".join(map(named, keys[:2])), H1)
    later = Run(S, 2, 2, 64, T, b"".join(map(named, keys[2:])), H1)
    made.now_ns = 200 * SECOND
    made.objects.on_listed(first, MIB, 0)
    made.objects.on_listed(later, MIB, 150 * SECOND)
    made.hear(made.objects.on_all_listed(made.now_ns))
    assert not made.dropped
    made.tick(60 * SECOND)
    assert {run.owner for run in made.dropped} == {S, T}


def test_few_leave_at_a_time() -> None:
    made = tier(objects_bytes_max=1, objects_rest_ns=0)
    for number in range(DROPPED_MAX + 5):
        owner = owner_key(TenantId("t"), SessionId(str(number)))
        made.objects.tier.add(Run(owner, 0, 2, 64, NO_OWNER, bytes(6), H1), MIB, 0)
    made.tick()
    assert len(made.dropped) == DROPPED_MAX
    made.tick()
    assert len(made.dropped) == DROPPED_MAX + 5


def test_what_came_from_there_is_not_written_again() -> None:
    made = tier()
    keys = chain(3)
    made.store(keys[:2], is_saved=True)
    made.store(keys[2:], parent=keys[1])
    (save,) = made.tick(10 * SECOND)
    assert (save.keys, save.run.depth) == (keys[2:], 2)


def test_a_run_that_is_gone_is_written_again_with_what_is_new() -> None:
    made = tier(objects_rest_ns=0)
    keys = chain(3)
    made.store(keys[:2])
    (save,) = made.tick()
    made.end(save)
    made.objects.on_gone([save.run])
    assert made.objects.tier.num_bytes == 0
    made.store(keys[2:], parent=keys[1])
    assert [again.keys for again in made.tick()] == [keys]


@pytest.mark.parametrize("said", [{objects_of(HostId("h9")): 7}, {HostId("h9"): 7}])
def test_what_others_wrote_is_what_they_say(said: dict[HostId, int]) -> None:
    is_objects = objects_of(HostId("h9")) in said
    assert tier().objects.may_have(S, said) == (7 if is_objects else 0)
