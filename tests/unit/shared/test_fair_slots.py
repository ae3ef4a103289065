"""Slots of many tenants: no tenant takes all of them or waits behind the queue of another."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import TenantQuota
from shared.fair_slots import FairGate, FairLimits, FairSlots, Overloaded
from shared.ids import TenantId

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")
LIMITS = FairLimits(num=4, of_tenant=2, waiting=6, waiting_of_tenant=3)


def test_a_tenant_with_a_long_queue_delays_no_other() -> None:
    slots = FairSlots("tests", LIMITS)
    assert [slots.ask(A, at) for at in range(5)] == [True, True, False, False, False]
    with pytest.raises(TenantQuota):
        slots.ask(A, 5)
    assert slots.ask(B, 10) and slots.ask(B, 11) and not slots.ask(B, 12)
    assert not slots.ask(C, 20)
    assert slots.give(A) == [20], "it has none yet"
    assert slots.give(B) == [2], "A was served before B"
    assert slots.give(B) == [12], "A has two, B has none"
    assert slots.give(A) == [3] and slots.give(A) == [4]


def test_tenants_are_served_in_turn() -> None:
    limits = FairLimits(num=1, of_tenant=1, waiting=9, waiting_of_tenant=9)
    slots = FairSlots("tests", limits)
    assert slots.ask(C, 0) and not any(slots.ask(A, at) for at in (1, 2, 3))
    assert not any(slots.ask(B, at) for at in (4, 5))
    assert [slots.give(tenant) for tenant in (C, A, B, A, B)] == [[1], [4], [2], [5], [3]]


def test_all_that_wait_have_a_limit() -> None:
    slots = FairSlots("tests", FairLimits(num=1, of_tenant=1, waiting=2, waiting_of_tenant=2))
    assert slots.ask(A, 0) and not slots.ask(A, 1) and not slots.ask(B, 2)
    with pytest.raises(Overloaded):
        slots.ask(C, 3)
    slots.leave(A, 1)
    assert not slots.ask(C, 4)
    assert slots.give(A) == [2]


@given(
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.sampled_from(["ask", "give", "leave"]))),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_slots_are_used_and_no_limit_is_passed(
    steps: list[tuple[TenantId, str]], num: int, of_tenant: int
) -> None:
    limits = FairLimits(num=num, of_tenant=of_tenant, waiting=5, waiting_of_tenant=3)
    slots, running = FairSlots("tests", limits), Counter[TenantId]()
    waiting: list[tuple[TenantId, int]] = []
    for ticket, (tenant, what) in enumerate(steps):
        own = [each for each in waiting if each[0] == tenant]
        if what == "ask":
            try:
                if slots.ask(tenant, ticket):
                    running[tenant] += 1
                    assert not own, "it has overtaken its own"
                else:
                    waiting.append((tenant, ticket))
            except TenantQuota:
                assert running[tenant] == of_tenant or len(own) == 3
            except Overloaded:
                assert len(waiting) == 5 or len(own) == 3
        elif what == "give" and running[tenant]:
            running[tenant] -= 1
            for served in slots.give(tenant):
                whose = next(each for each in waiting if each[1] == served)
                first_own = next(each for each in waiting if each[0] == whose[0])
                assert whose == first_own
                waiting.remove(whose)
                running[whose[0]] += 1
        elif what == "leave" and own:
            slots.leave(*own[-1])
            waiting.remove(own[-1])
        assert running.total() <= num and max(running.values(), default=0) <= of_tenant
        assert len(waiting) <= 5
        if running.total() < num:
            assert all(running[tenant] >= of_tenant for tenant, _ in waiting), "idle beside work"


def test_work_that_stops_waiting_takes_no_slot() -> None:
    async def scenario() -> None:
        limits = FairLimits(num=1, of_tenant=1, waiting=3, waiting_of_tenant=3)
        gate, order = FairGate("tests", limits), list[int]()
        go_on = asyncio.Event()

        async def work(number: int) -> None:
            async with gate.slot(A if number < 2 else B, 60.0):
                order.append(number)
                await go_on.wait()

        tasks = [asyncio.create_task(work(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        go_on.set()
        tasks[0].add_done_callback(lambda _: tasks[2].cancel())  # which has just got the slot
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order[0] == 0 and 3 in order and 1 not in order
        async with gate.slot(C, 0.0):
            pass

    asyncio.run(scenario())


def test_waiting_has_an_end() -> None:
    async def scenario() -> None:
        limits = FairLimits(num=1, of_tenant=1, waiting=3, waiting_of_tenant=3)
        gate = FairGate("tests", limits)
        async with gate.slot(A, 0.0):
            with pytest.raises(Overloaded, match="too many tests"):
                async with gate.slot(B, 0.0):
                    pass
        async with gate.slot(B, 0.0):
            pass

    asyncio.run(scenario())
