"""Accounts of those who send advisories."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import HintsThrottled, MalformedMessage
from shared.ids import TenantId
from shared.wire import hint_accounts
from shared.wire.hint_accounts import TAKE_BACK_COST, HintAccounts, HintLimits, HintSender
from shared.wire.messages import HintsEnded, HintVerdict
from tests.tables import largest_table

A, B = TenantId("a"), TenantId("b")
SECOND = 1_000_000_000
HOUR = 3600 * SECOND


def may(
    accounts: HintAccounts,
    now_ns: int = SECOND,
    tenant: TenantId = A,
    place: str = "x",
    cost: float = 1.0,
    shard: int = 0,
    session: str = "invented",
    has_kv: bool = False,
) -> bool:
    sender = HintSender(tenant, place, session)
    try:
        payer = accounts.take(sender, now_ns, cost, has_kv=has_kv)
    except HintsThrottled:
        return False
    if cost >= 1:
        accounts.on_sent(sender, payer, shard)
    return True


def tell(
    accounts: HintAccounts,
    life: str = "1",
    place: str = "x",
    *,
    num_used: int = 0,
    num_taken_back: int = 0,
    num_spurious: int = 0,
    shard: int = 0,
    tenant: TenantId = A,
    session: str = "",
) -> None:
    verdict = HintVerdict(
        tenant=tenant,
        place=place,
        session=session,
        num_used=num_used,
        num_taken_back=num_taken_back,
        num_spurious=num_spurious,
    )
    accounts.on_ended(HintsEnded(tracker_id=life, verdicts=[verdict], shard=shard))


def spent(num: int = 10, per_tenant: int = 1000) -> HintAccounts:
    """Whoever is new begins with a quarter."""
    accounts = HintAccounts(HintLimits(per_place=4 * num, per_tenant=per_tenant))
    assert [may(accounts) for _ in range(num + 1)] == [True] * num + [False]
    return accounts


def test_who_is_refused_is_told_when_to_come_again_and_may() -> None:
    accounts = spent()
    with pytest.raises(HintsThrottled, match="from x were not used") as refusal:
        accounts.take(HintSender(A, "x", "s"), SECOND)
    assert refusal.value.retry_after_s == 1 and refusal.value.http_status == 429
    assert may(accounts, place="y") and may(accounts, tenant=B), "others are not meant"
    assert may(accounts, 2 * SECOND), "after a second"
    assert not may(accounts, 2 * SECOND)


@pytest.mark.parametrize(
    ("used", "taken_back", "spurious", "num_more"),
    [(2, 0, 0, 8), (0, 4, 0, 2), (0, 0, 10, 0), (100, 0, 0, 40)],
)
def test_outcomes_fill_the_bucket_and_no_more_than_that(
    used: int, taken_back: int, spurious: int, num_more: int
) -> None:
    accounts = spent()
    tell(accounts, num_used=used, num_taken_back=taken_back, num_spurious=spurious)
    assert sum(may(accounts) for _ in range(50)) == num_more


def test_repetitions_and_taking_back_cost_a_quarter() -> None:
    accounts = HintAccounts(HintLimits(per_place=40, per_tenant=0))
    num = 0
    while may(accounts):
        accounts.on_refund(HintSender(A, "x", "s"), "place")
        num += 1
    assert num == 37, "the last one needs a whole token"
    accounts = HintAccounts(HintLimits(per_place=40, per_tenant=0))
    assert sum(may(accounts, cost=TAKE_BACK_COST) for _ in range(100)) == 40


def test_many_addresses_share_the_tenant_s_bucket_and_who_was_right_needs_none_of_it() -> None:
    accounts = HintAccounts(HintLimits(per_place=80, per_tenant=240))
    for _ in range(9):
        assert may(accounts, place="right")
        tell(accounts, place="right", num_used=1)
    places = [f"p{number}" for number in range(20)]
    assert sum(may(accounts, place=place) for place in places for _ in range(20)) == 87, (
        "a quarter, and what came true of the others' gave back"
    )
    with pytest.raises(HintsThrottled, match="of this tenant"):
        accounts.take(HintSender(A, "new", "s"), SECOND)
    assert may(accounts, place="right")


def test_a_tenant_s_turns_let_its_people_announce_as_many_and_a_bucket_holds_no_more() -> None:
    accounts = HintAccounts(HintLimits(per_place=8, per_tenant=40))
    people = [f"p{number}" for number in range(100)]
    assert sum(may(accounts, place=place) for place in people) == 10
    for _ in range(7):
        accounts.on_turn(A, "s", SECOND)
        accounts.on_turn(B, "s", SECOND)
    assert sum(may(accounts, place=place) for place in people) == 7
    for _ in range(50):
        accounts.on_turn(A, "s", SECOND)
    assert sum(may(accounts, place="one") for place in people) == 2, "of one address no more"
    assert sum(may(accounts, place=place) for place in people) == 38


def test_who_was_right_for_long_and_is_mostly_wrong_lately_needs_its_tenant_s_again() -> None:
    accounts = HintAccounts(HintLimits(per_place=80, per_tenant=1000))
    assert may(accounts, place="right")
    for _ in range(500):
        tell(accounts, place="right", num_used=1)
    places = [f"p{number}" for number in range(60)]
    assert sum(may(accounts, place=place) for place in places for _ in range(20)) == 1000
    assert may(accounts, place="right")
    for _ in range(60):
        tell(accounts, place="right", num_spurious=1)
    assert not may(accounts, place="right")


def test_what_a_dead_tracker_did_not_tell_is_forgiven_once() -> None:
    accounts = spent()
    tell(accounts, "1", num_spurious=4)
    assert not may(accounts)
    tell(accounts, "2", "elsewhere")
    assert sum(may(accounts) for _ in range(20)) == 6, "of four it was told that they were wrong"
    tell(accounts, "2", "elsewhere")
    assert not may(accounts), "it is the same life"


def test_of_a_divided_tracker_only_what_a_dead_shard_did_not_tell_is_forgiven() -> None:
    accounts = HintAccounts(HintLimits(per_place=40, per_tenant=0))
    assert [may(accounts, shard=number % 2) for number in range(11)] == [True] * 10 + [False]
    for _ in range(3):
        tell(accounts, "a", "elsewhere")
        tell(accounts, "b", "elsewhere", shard=1)
    assert not may(accounts), "two lives beside each other do not follow each other"
    tell(accounts, "b", shard=1, num_spurious=2)
    tell(accounts, "c", "elsewhere", shard=1)
    assert sum(may(accounts, shard=1) for _ in range(20)) == 3, "of five it had told of two"
    tell(accounts, "a", num_spurious=4)
    tell(accounts, "d", "elsewhere")
    assert sum(may(accounts) for _ in range(20)) == 1
    with pytest.raises(MalformedMessage, match="shard 64"):
        tell(accounts, shard=64)


def test_without_limits_everybody_may() -> None:
    accounts = HintAccounts(HintLimits(per_place=0, per_tenant=0))
    assert all(may(accounts) for _ in range(1000))


def test_status_names_who_is_refused_until_a_while_after_it_stopped() -> None:
    accounts = spent()
    assert not may(accounts)
    (shown,) = accounts.throttled(SECOND)
    assert (shown.tenant, shown.place, shown.num_refused) == (A, "x", 2)
    assert accounts.throttled(12 * SECOND) == []


def test_of_too_many_senders_those_unused_for_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hint_accounts, "ACCOUNTS_MAX", 3)
    accounts = spent()
    for number in range(10):
        assert may(accounts, place=f"p{number}")
        assert not may(accounts), "it still asks, so it is not forgotten"
    assert largest_table(accounts) == 3


Step = Callable[[HintAccounts, int], object]
STEPS = st.sampled_from(
    [
        may,
        lambda accounts, now_ns: may(accounts, now_ns, cost=TAKE_BACK_COST),
        lambda accounts, _: accounts.on_refund(HintSender(A, "x", "s"), "place"),
        lambda accounts, _: tell(accounts, num_used=3),
        lambda accounts, _: tell(accounts, num_spurious=2, num_taken_back=3),
        lambda accounts, _: tell(accounts, "2", num_spurious=1),
        lambda accounts, now_ns: may(accounts, now_ns, shard=1),
        lambda accounts, _: tell(accounts, "3", num_spurious=1, shard=1),
    ]
)


@given(st.lists(st.tuples(STEPS, st.integers(0, SECOND)), max_size=60))
def test_a_bucket_holds_what_it_may_and_nobody_is_refused_for_ever(
    steps: list[tuple[Step, int]],
) -> None:
    accounts = HintAccounts(HintLimits(per_place=5, per_tenant=6))
    now_ns = 0
    for step, passed_ns in steps:
        now_ns += passed_ns
        step(accounts, now_ns)
        for kind in (accounts._places, accounts._tenants):
            for account in kind.of.values():
                assert 0 <= account.tokens <= kind.size and account.open >= 0
    may(accounts, now_ns)
    later_ns = now_ns + HOUR
    assert [may(accounts, later_ns) for _ in range(7)] == [True] * 5 + [False] * 2


def test_nobody_is_forgotten_for_another_tenant_s_many_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hint_accounts, "ACCOUNTS_MAX", 30)
    accounts = HintAccounts(HintLimits(per_place=1000, per_tenant=0))
    for number in range(5):
        assert may(accounts, tenant=B, place=f"b{number}")
    for number in range(200):
        assert may(accounts, place=f"p{number}")
    for number in range(3):
        assert may(accounts, tenant=TenantId("c"), place=f"c{number}")
    places = accounts._places.of
    kept = [tenant for tenant, _ in places]
    assert [kept.count(TenantId(each)) for each in "abc"] == [22, 5, 3]
    assert (A, "p199") in places and (A, "p170") not in places
    for number in range(100):
        assert may(accounts, tenant=TenantId(f"t{number}"))
    assert largest_table(accounts) == 30
    for kind in (accounts._places, accounts._tenants):
        assert sum(map(len, kind._of_tenant.values())) == 30 and all(kind._of_tenant.values())
