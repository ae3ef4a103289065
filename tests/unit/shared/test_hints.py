"""Shares of a pool that hints may hold."""

from hypothesis import given
from hypothesis import strategies as st

from shared.hints import HINTED_SHARE, SHARE_OF_ONE, HintShares
from shared.ids import DEFAULT_TENANT, SessionId, TenantId
from shared.owners import OwnerKey, owner_key

ACME = TenantId("acme")
PAGES = 1000
ALL, ONE = int(HINTED_SHARE * PAGES), int(SHARE_OF_ONE * PAGES)


def session(number: int, tenant: TenantId = DEFAULT_TENANT) -> OwnerKey:
    return owner_key(tenant, SessionId(f"s{number}"))


def fill(shares: HintShares, tenant: TenantId, num_sessions: int, num_pages: int) -> int:
    """So many sessions ask for so many pages each; how many they get."""
    before = shares.num_held
    for number in range(num_sessions):
        owner = session(number, tenant)
        shares.take(tenant, owner, min(shares.room(tenant, owner), num_pages))
    return shares.num_held - before


def test_without_tenants_sessions_together_hold_all_and_one_holds_its_part() -> None:
    assert fill(HintShares.of_pages(PAGES), DEFAULT_TENANT, 200, 10) == ALL
    assert fill(HintShares.of_pages(PAGES), DEFAULT_TENANT, 1, PAGES) == ONE


def test_of_several_tenants_each_holds_its_part_the_default_one_as_well() -> None:
    assert fill(HintShares.of_pages(PAGES), ACME, 200, 10) == ONE
    shares = HintShares.of_pages(PAGES)
    assert fill(shares, ACME, 1, 10) == 10
    assert fill(shares, DEFAULT_TENANT, 200, 10) == ONE
    assert fill(shares, ACME, 200, 10) == ALL - ONE - 10


def test_a_tenant_that_finds_the_default_one_over_its_part_has_it_wait() -> None:
    shares = HintShares.of_pages(PAGES)
    fill(shares, DEFAULT_TENANT, 80, 10)
    assert fill(shares, ACME, 1, 10) == 0
    for number in range(30):
        shares.give(DEFAULT_TENANT, session(number), 10)
        assert not shares.room(DEFAULT_TENANT, session(number)) or shares.num_held < ONE
    assert fill(shares, ACME, 200, 10) == ALL - 500


@given(
    st.lists(
        st.tuples(
            st.sampled_from([DEFAULT_TENANT, DEFAULT_TENANT, ACME, TenantId("b")]),
            st.integers(0, 9),
            st.integers(0, 400),
            st.booleans(),
        ),
        max_size=80,
    )
)
def test_nothing_is_lost_and_no_limit_is_passed(
    steps: list[tuple[TenantId, int, int, bool]],
) -> None:
    shares = HintShares.of_pages(PAGES)
    held: dict[tuple[TenantId, OwnerKey], int] = {}
    seen = {DEFAULT_TENANT}
    for tenant, number, num, is_given in steps:
        name = tenant, session(number, tenant)
        if is_given:
            shares.give(*name, held.pop(name, 0))
            continue
        seen.add(tenant)
        of_tenant = sum(each for (of, _), each in held.items() if of == tenant)
        of_one = of_tenant if len(seen) > 1 else held.get(name, 0)
        room = shares.room(*name)
        assert room == max(min(ONE - of_one, ALL - sum(held.values())), 0)
        shares.take(*name, min(room, num))
        held[name] = held.get(name, 0) + min(room, num)
    for name, num in held.items():
        shares.give(*name, num)
    assert shares.num_held == 0 and not shares._num_of
