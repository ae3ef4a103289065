"""Reports of what pools used are taken in steps, whatever they name."""

from itertools import chain

import pytest

from services.kvstore.core import DoMore, Effect, FoundBlocks, KvCore, Limits, TouchBlocks, uses
from services.kvstore.core.base.events import Open, Renew
from services.kvstore.core.disk.stored_block import StoredBlock
from shared.blocks import BlockKey
from shared.ids import SessionId, TenantId, WorkerId
from shared.owners import OwnerKey, owner_key
from tests.unit.kvstore.core.host import LAYERS, PAGE_BYTES, key_of

NUM, EACH = 6, 3  # sequences, and blocks of each
BLOCKS_MAX = 5
NOW_NS = 1000
WORKER = WorkerId("w")
LASTS = [key_of(sequence, EACH - 1) for sequence in range(NUM)]


def all_of(*sequences: int) -> list[BlockKey]:
    """Their blocks, the last of each first."""
    return [key_of(sequence, at) for sequence in sequences for at in reversed(range(EACH))]


def owner_of(sequence: int) -> OwnerKey:
    return owner_key(TenantId("t"), SessionId(f"s{sequence}"))


@pytest.fixture
def kvstore(monkeypatch: pytest.MonkeyPatch) -> KvCore:
    """Sequences on disk."""
    monkeypatch.setattr(uses, "BLOCKS_MAX", BLOCKS_MAX)
    limits = Limits(disk_bytes_max=10**9, expiry_ns=10**9, noted_ns=100, drops_max=1)
    made = KvCore(limits)
    blocks = [
        StoredBlock(
            key_of(sequence, at), LAYERS, PAGE_BYTES, 10, 5, 5,
            owner=owner_of(sequence), parent=key_of(sequence, at - 1),
        )
        for sequence in range(NUM)
        for at in range(EACH)
    ]  # fmt: skip
    made.on_disk_found(FoundBlocks.of(blocks), 100)
    made.on_arena(PAGE_BYTES, 4)
    made.on_open(Open(WORKER, "i", "f", LAYERS, PAGE_BYTES), 100)
    return made


def report(kvstore: KvCore, used: list[BlockKey]) -> list[Effect]:
    return kvstore.on_renew(Renew(WORKER, "i", [], PAGE_BYTES, used=used), NOW_NS)[1]


def rest_of(kvstore: KvCore, effects: list[Effect]) -> list[list[BlockKey]]:
    """What each step touched, of this one and of those after it."""
    steps = [touched(effects)]
    while DoMore() in effects:
        effects = kvstore.on_do_more(NOW_NS)
        steps.append(touched(effects))
    return steps


def touched(effects: list[Effect]) -> list[BlockKey]:
    return [key for each in effects if isinstance(each, TouchBlocks) for key in each.keys]


def test_a_step_takes_few_blocks_and_all_are_taken_in_the_order_of_use(kvstore: KvCore) -> None:
    steps = rest_of(kvstore, report(kvstore, LASTS))
    assert max(map(len, steps)) < BLOCKS_MAX + EACH
    assert [*chain(*steps)] == all_of(*range(NUM))
    assert kvstore.disk.keys == all_of(*range(NUM))


def test_what_is_not_here_takes_a_part_of_a_step_too(kvstore: KvCore) -> None:
    steps = rest_of(kvstore, report(kvstore, [key_of(9, at) for at in range(BLOCKS_MAX)] + LASTS))
    assert steps[0] == [] and [*chain(*steps)] == all_of(*range(NUM))


def test_one_step_is_asked_for_whoever_reports_and_whatever_expires(kvstore: KvCore) -> None:
    effects = report(kvstore, LASTS[:4]) + report(kvstore, LASTS[4:])
    for later_ns in (1, 2 * 10**9):  # what waits is used, what was used expires
        effects += kvstore.on_tick(NOW_NS + later_ns)
        assert effects.count(DoMore()) == 1
        while DoMore() in effects:
            effects = kvstore.on_do_more(NOW_NS + later_ns)
            assert effects.count(DoMore()) <= 1
    assert not len(kvstore.disk)


def test_what_was_deleted_meanwhile_is_passed_over(kvstore: KvCore) -> None:
    effects = report(kvstore, LASTS)
    kvstore.on_delete(owner_of(4), [], NOW_NS)
    steps = rest_of(kvstore, effects)
    assert [*chain(*steps)] == all_of(0, 1, 2, 3, 5)


def test_of_too_many_the_latest_count(kvstore: KvCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses, "WAITING_MAX", 2)
    effects = report(kvstore, LASTS[:4])
    assert touched(effects) == all_of(2, 3)
    effects = report(kvstore, [LASTS[0], *LASTS[4:], LASTS[0]])
    assert rest_of(kvstore, effects) == [all_of(5, 0)]


def test_a_sequence_that_is_used_again_while_it_waits_is_taken_once_as_the_latest(
    kvstore: KvCore,
) -> None:
    effects = report(kvstore, LASTS) + report(kvstore, LASTS[4:5])  # the second takes two more
    steps = rest_of(kvstore, effects)
    assert [*chain(*steps)] == all_of(0, 1, 2, 3, 5, 4)


def test_every_session_that_was_used_is_kept_in_the_object_store(
    kvstore: KvCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[OwnerKey] = []
    monkeypatch.setattr(kvstore.objects, "on_used", lambda owner, now_ns: owners.append(owner))
    rest_of(kvstore, report(kvstore, LASTS))
    assert owners == list(map(owner_of, range(NUM)))
