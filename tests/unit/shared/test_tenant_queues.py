"""Tenants' queues: each in its own order, and none passed twice by another."""

from collections import Counter, defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import tenant_queues
from shared.ids import TenantId
from shared.tenant_queues import TenantQueues

TENANTS = [TenantId(name) for name in "abc"]
STEPS = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.sampled_from(["put", "put", "take", "take and end"])),
    min_size=8,
)


@given(STEPS, st.integers(1, 3))
def test_a_tenant_that_waits_is_passed_by_another_once_at_most(
    steps: list[tuple[TenantId, str]], of_tenant: int
) -> None:
    queues: TenantQueues[int] = TenantQueues()
    mirror: dict[TenantId, deque[int]] = defaultdict(deque)
    running: Counter[TenantId] = Counter()
    passed: Counter[tuple[TenantId, TenantId]] = Counter()  # by whom, since it was served
    for item, (tenant, what) in enumerate(steps):
        if what == "put":
            queues.put(tenant, item)
            mirror[tenant].append(item)
        elif (taken := queues.take(running, of_tenant)) is not None:
            first, found = taken
            assert found == mirror[first].popleft(), "its own came earlier"
            for other in TENANTS:
                if not mirror[other]:
                    passed[other, first] = 0
                elif other != first and running[other] <= running[first]:
                    passed[other, first] += 1
                    assert passed[other, first] <= 1, f"{first} passed {other}"
                passed[first, other] = 0
            assert running[first] < of_tenant
            running[first] += what == "take"
        assert len(queues) == len(list(queues)) == sum(map(len, mirror.values()))


def test_of_too_many_tenants_those_served_longest_ago_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenant_queues, "SERVED_MAX", 1)
    queues: TenantQueues[int] = TenantQueues()
    first, second, third = TENANTS
    for tenant in (first, second):
        queues.on_served(tenant)
    for tenant in (second, first, third):
        queues.put(tenant, 0)
    assert queues.take({}, 1) == (first, 0), "as if it was never served, before one that came later"
