"""What one tenant may have of a frontend at once."""

from collections import Counter
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.limits.capacity import Capacity
from services.frontend.core.limits.quotas import (
    SHARE,
    Admission,
    Kind,
    Quotas,
    TenantCapacity,
    TenantLimits,
    priority_within,
)
from shared.errors import InvalidRequest, TenantQuota
from shared.ids import TenantId

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")
KINDS: tuple[Kind, ...] = ("turns", "waiting_tokens", "jobs", "job_bytes")
LIMITS = TenantLimits(turns=3, waiting_tokens=50, jobs=4, job_bytes=60)
TIGHT = TenantLimits(turns=3, waiting_tokens=5, jobs=4, job_bytes=6)

tenants = st.sampled_from([A, B, C])
amounts = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 7), min_size=1, max_size=2)
steps = st.lists(st.tuples(tenants, st.one_of(amounts, st.integers(0, 20))), max_size=60)


def play(quotas: Quotas, given: list[tuple[TenantId, dict[Kind, int] | int]]) -> list[object]:
    """Take, or give back the n-th thing that was taken; what came of each step."""
    held: dict[TenantId, list[dict[Kind, int]]] = {A: [], B: [], C: []}
    came_of: list[object] = []
    for tenant, what in given:
        if isinstance(what, int):
            if held[tenant]:
                quotas.give(tenant, held[tenant].pop(what % len(held[tenant])))
            came_of.append(None)
        else:
            refused_by = quotas.take(tenant, what)
            if refused_by is None:
                held[tenant].append(what)
            came_of.append(refused_by)
        for kind in KINDS:
            used = sum(amount.get(kind, 0) for amount in held[tenant])
            limit = getattr(quotas.of(tenant), kind)
            assert quotas.used(tenant, kind) == used >= 0
            assert not limit or used <= limit
    for tenant, amounts_held in held.items():
        for amount in amounts_held:
            quotas.give(tenant, amount)
    assert quotas.is_unused
    return came_of


@given(steps)
def test_no_limit_is_passed_and_nobody_feels_another(
    given: list[tuple[TenantId, dict[Kind, int] | int]],
) -> None:
    own = {B: TenantLimits(turns=1, waiting_tokens=10), C: TenantLimits()}
    together = play(Quotas(TIGHT, own), given)
    for tenant in (A, B, C):
        alone = [step for step in given if step[0] == tenant]
        seen = [came for step, came in zip(given, together, strict=True) if step[0] == tenant]
        assert play(Quotas(TIGHT, own), alone) == seen
    assert not any(came for step, came in zip(given, together, strict=True) if step[0] == C)


@given(steps)
def test_what_is_refused_would_have_passed_a_limit(
    given: list[tuple[TenantId, dict[Kind, int] | int]],
) -> None:
    quotas, used = Quotas(TIGHT, {}), Counter[Kind]()
    for _, what in given:
        if isinstance(what, int):
            continue
        refused_by = quotas.take(A, what)
        if refused_by is None:
            used.update(what)
        else:
            assert used[refused_by] + what[refused_by] > getattr(TIGHT, refused_by)


def test_a_prompt_waits_until_its_first_token() -> None:
    quotas = Quotas(LIMITS, {})
    with Admission(quotas, A, [20, 20]) as admission:
        assert (quotas.used(A, "turns"), quotas.used(A, "waiting_tokens")) == (2, 40)
        with pytest.raises(TenantQuota) as refused, Admission(quotas, A, [11]):
            pass
        assert (refused.value.code, refused.value.http_status) == ("tenant_quota", 429)
        assert "waiting_tokens" in refused.value.message
        with Admission(quotas, B, [50]):
            pass
        for _ in range(2):
            admission.on_token(1)
            assert quotas.used(A, "waiting_tokens") == 20
        with Admission(quotas, A, [30]), pytest.raises(TenantQuota), Admission(quotas, A, [0]):
            pass
    assert quotas.is_unused


@pytest.mark.parametrize("prompts", [[1, 1, 1, 1], [51], [26, 25]])
def test_what_no_waiting_helps_is_not_to_be_asked_again(prompts: list[int]) -> None:
    quotas = Quotas(LIMITS, {})
    with pytest.raises(InvalidRequest) as refused, Admission(quotas, A, prompts):
        pass
    assert (refused.value.code, refused.value.http_status) == ("tenant_quota", 400)
    assert quotas.is_unused


def test_a_tenant_at_its_limit_is_known_before_its_prompt_is_looked_at() -> None:
    quotas = Quotas(TenantLimits(turns=1), {})
    quotas.check_turns(A)
    with Admission(quotas, A, [1]):
        quotas.check_turns(B)
        with pytest.raises(TenantQuota, match="turns"):
            quotas.check_turns(A)
    quotas.check_turns(A)


def test_a_tenant_fills_its_part_of_the_room_only() -> None:
    capacity, quotas = Capacity(6, 100), Quotas(LIMITS, {})
    a, b = TenantCapacity(capacity, quotas, A), TenantCapacity(capacity, quotas, B)
    other = TenantCapacity(capacity, quotas, A)
    assert a.take(4, 60)
    with pytest.raises(TenantQuota, match="jobs"):
        other.take(1, 0)
    with pytest.raises(TenantQuota, match="job_bytes"):
        other.take(0, 1)
    for more in ((1, 0), (0, 1)):
        with pytest.raises(InvalidRequest, match=r"5 inputs|61 bytes"):
            a.take(*more)
    assert not b.take(3, 0), "the room itself is full"
    assert b.take(2, 40)
    a.give(4, 60)
    b.give(2, 40)
    assert quotas.is_unused and (capacity.num, capacity.num_bytes) == (0, 0)
    with pytest.raises(InvalidRequest):
        a.take(5, 0)
    with pytest.raises(InvalidRequest):
        a.take(0, 61)
    assert quotas.is_unused and (capacity.num, capacity.num_bytes) == (0, 0)


def test_priorities_outside_of_the_range_are_refused_and_defaults_moved_into_it() -> None:
    assert priority_within((-1, 1), None, default=0) == 0
    assert priority_within((2, 5), None, default=0) == 2
    assert priority_within((-3, 0), None, default=1) == 0
    for asked in (-1, 0, 1):
        assert priority_within((-1, 1), asked, default=0) == asked
    for asked in (-2, 2):
        with pytest.raises(InvalidRequest, match="-1 to 1") as refused:
            priority_within((-1, 1), asked, default=0)
        assert refused.value.param == "priority"


@given(
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(1, 20)), max_size=200),
    st.integers(1000, 3000),
)
def test_what_some_take_leaves_room_for_those_who_have_nothing(
    takes: list[tuple[TenantId, int]], num_bytes: int
) -> None:
    capacity = Capacity(10**6, num_bytes)
    quotas = Quotas(TenantLimits(), {}, {"job_bytes": lambda: capacity.num_free_bytes})
    rooms = {tenant: TenantCapacity(capacity, quotas, tenant) for tenant in (A, B, C)}
    for tenant, amount in takes:
        with suppress(TenantQuota):
            assert rooms[tenant].take(0, amount), "refused in the name of all"
        num_holding = len([each for each in (A, B, C) if quotas.used(each, "job_bytes")])
        least = num_bytes / (SHARE * num_holding + 1) - 20  # the last one's amount may be too much
        assert capacity.num_free_bytes >= least
    newcomer = TenantCapacity(capacity, quotas, TenantId("d"))
    if capacity.num_free_bytes >= 20:
        assert newcomer.take(0, 20)


def test_a_share_is_told_apart_from_a_limit() -> None:
    capacity = Capacity(10, 10**6)
    free = {"jobs": lambda: capacity.num_free}
    quotas = Quotas(TenantLimits(), {B: TenantLimits(jobs=10)}, cast(Any, free))
    a, b = (TenantCapacity(capacity, quotas, tenant) for tenant in (A, B))
    assert a.take(8, 0)
    with pytest.raises(TenantQuota, match="the rest is kept for others"):
        a.take(1, 0)
    assert b.take(2, 0), "its operator has named its limit"
    assert not a.take(1, 0), "full for everybody"
    a.give(8, 0)
    assert a.take(8, 0), "one request may take all that is free"
