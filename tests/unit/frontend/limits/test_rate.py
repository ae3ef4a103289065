"""How often a tenant may do something."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.limits.capacity import FULL_ONES_MAX, MINUTE_NS, TenantRate
from shared.errors import TenantQuota
from shared.ids import TenantId
from tests.tables import largest_table

A, B = TenantId("a"), TenantId("b")


class Now:
    def __init__(self) -> None:
        self.ns = 5

    def __call__(self) -> int:
        return self.ns


def may(pace: TenantRate, tenant: TenantId = A) -> bool:
    try:
        pace.take(tenant)
    except TenantQuota:
        return False
    return True


def test_a_minute_s_worth_at_once_and_then_one_by_one() -> None:
    now = Now()
    pace = TenantRate(60, "changes", now)
    assert [may(pace) for _ in range(61)] == [True] * 60 + [False]
    assert may(pace, B), "others have their own"
    with pytest.raises(TenantQuota, match="too many changes: it may make 60 a minute") as refusal:
        pace.take(A)
    assert refusal.value.retry_after_s == 1 and refusal.value.http_status == 429
    now.ns += MINUTE_NS // 60
    assert [may(pace), may(pace)] == [True, False]


def test_without_a_limit_there_is_none() -> None:
    pace = TenantRate(0, "changes", Now())
    assert all(may(pace) for _ in range(10_000))


@given(st.lists(st.integers(0, MINUTE_NS // 3), max_size=60), st.integers(1, 20))
def test_never_more_than_two_minutes_worth_in_a_minute(pauses: list[int], limit: int) -> None:
    now = Now()
    pace, taken = TenantRate(limit, "changes", now), list[int]()
    for pause_ns in pauses:
        now.ns += pause_ns
        if may(pace):
            taken.append(now.ns)
    for first in taken:
        assert sum(first <= at < first + MINUTE_NS for at in taken) <= 2 * limit


def test_what_is_remembered_is_bounded() -> None:
    now = Now()
    pace = TenantRate(60, "changes", now)
    for number in range(3 * FULL_ONES_MAX):
        now.ns += MINUTE_NS // 60
        pace.take(TenantId(f"t{number}"))
    assert largest_table(pace) <= FULL_ONES_MAX + 1
