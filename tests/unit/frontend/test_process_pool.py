"""Work and the processes that do it: everything asked for ends, whatever becomes of them."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.process_pool import (
    Effect,
    Fail,
    Give,
    Kill,
    PoolLimits,
    ProcessPool,
    Start,
)
from shared.ids import TenantId

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")
LIMITS = PoolLimits(num_children=2, waiting_max=3, wait_ns=100, work_ns=50, start_ns=1000)


def ready(crew: ProcessPool, now_ns: int = 0) -> None:
    """Both children idle: one has done a piece of work each."""
    assert crew.on_work(-1, now_ns) == [Start(0)]
    assert crew.on_work(-2, now_ns, B) == [Start(1)]
    for child in (0, 1):
        assert crew.on_ready(child, now_ns) == [Give(child, -child - 1)]
    for child in (0, 1):
        assert crew.on_done(child, now_ns) == []


def test_children_start_when_there_is_work_and_only_as_many_as_it_needs() -> None:
    crew = ProcessPool(LIMITS)
    assert crew.next_at_ns() is None
    assert crew.on_work(1, 0) == [Start(0)]
    assert crew.on_ready(0, 5) == [Give(0, 1)]
    assert crew.on_work(2, 6) == [Start(1)], "the first one is busy"
    assert crew.on_done(0, 7) == [Give(0, 2)], "who is free first takes it"
    assert crew.on_ready(1, 8) == []
    assert crew.on_work(3, 9) == [Give(1, 3)]


def test_a_child_that_was_begun_early_takes_the_first_work() -> None:
    crew = ProcessPool(LIMITS)
    assert crew.on_open(0) == [Start(0)]
    assert crew.on_work(1, 1) == [], "it is about to be ready"
    assert crew.on_ready(0, 2) == [Give(0, 1)]
    crew = ProcessPool(LIMITS)
    assert crew.on_open(0) == [Start(0)]
    assert crew.on_ended(0, 1) == [], "nothing waits for it"
    assert crew.on_work(1, 2) == [Start(0)]


def test_work_that_does_not_end_costs_its_child_and_nobody_else() -> None:
    crew = ProcessPool(LIMITS)
    ready(crew)
    assert crew.on_work(1, 0) == [Give(0, 1)]
    crew.on_begun(0, 20)
    assert crew.next_at_ns() == 70, "loading does not count"
    assert crew.on_work(2, 20) == [Give(1, 2)]
    assert crew.on_work(3, 20) == []
    assert crew.on_tick(69) == []
    assert crew.on_tick(70) == [Fail(1, "too_long"), Kill(0)]
    assert crew.on_done(0, 71) == [], "an answer that comes all the same is not taken"
    assert crew.on_done(1, 71) == [Give(1, 3)]
    assert crew.on_ended(0, 72) == [Start(0)], "replaced before anybody asks"


def test_a_child_that_dies_gives_its_work_to_another_once() -> None:
    crew = ProcessPool(LIMITS)
    ready(crew)
    assert crew.on_work(1, 0) == [Give(0, 1)]
    assert crew.on_ended(0, 5) == [Give(1, 1)]
    assert crew.on_ended(1, 9) == [Fail(1, "lost")]
    assert crew.on_work(2, 10) == [Start(0)]


def test_those_who_wait_are_few_and_do_not_wait_for_ever() -> None:
    crew = ProcessPool(LIMITS)
    ready(crew)
    for work in range(5):
        crew.on_work(work, 10)
    assert crew.on_work(5, 10) == [Fail(5, "full")]
    crew.on_abandoned(3)
    for child in (0, 1):
        crew.on_begun(child, 100)
    assert crew.on_tick(110) == [Fail(2, "full"), Fail(4, "full")]
    assert crew.next_at_ns() == 150


def test_a_child_that_cannot_start_fails_those_who_wait_for_it() -> None:
    crew = ProcessPool(LIMITS)
    assert crew.on_work(1, 0) == [Start(0)]
    assert crew.on_ended(0, 1) == [Fail(1, "lost")]
    assert crew.on_work(2, 2) == [Start(0)], "the next one tries again"
    crew.on_abandoned(2)
    assert crew.on_tick(1002) == [Kill(0)]
    assert crew.on_ready(0, 1003) == []
    assert crew.on_ended(0, 1004) == []


def test_a_tenant_with_a_long_queue_delays_no_other() -> None:
    crew = ProcessPool(replace(LIMITS, waiting_max=8, children_of_tenant=1))
    ready(crew)
    assert crew.on_work(1, 0, A) == [Give(0, 1)]
    assert [crew.on_work(work, 0, A) for work in range(2, 6)] == [[]] * 4, "a child is kept free"
    assert crew.on_work(6, 0, A) == [Fail(6, "full")], "half of those that may wait"
    assert crew.on_work(11, 0, B) == [Give(1, 11)]
    assert crew.on_work(12, 0, B) == crew.on_work(21, 0, C) == []
    assert crew.on_done(0, 1) == [Give(0, 21)], "before what A has waiting"
    assert crew.on_done(1, 2) == [Give(1, 2)], "B had its turn after A"
    assert crew.on_done(0, 3) == [Give(0, 12)]
    assert crew.on_done(1, 4) == [Give(1, 3)]


def test_without_others_a_tenant_has_all_children() -> None:
    crew = ProcessPool(LIMITS)
    ready(crew)
    assert crew.on_work(1, 0, A) == [Give(0, 1)] and crew.on_work(2, 0, A) == [Give(1, 2)]


def test_no_process_is_started_for_what_a_tenant_may_not_run() -> None:
    crew = ProcessPool(replace(LIMITS, children_of_tenant=1))
    assert crew.on_work(1, 0, A) == [Start(0)]
    assert crew.on_work(2, 0, A) == []
    assert crew.on_work(3, 0, B) == [Start(1)]


def test_work_that_ends_its_child_is_given_to_no_other() -> None:
    crew = ProcessPool(LIMITS)
    ready(crew)
    assert crew.on_work(1, 0) == [Give(0, 1)]
    assert crew.on_ended(0, 5, is_by_work=True) == [Fail(1, "crashed")]


@given(st.integers(0, 2**32))
def test_everything_ends_once_whatever_the_children_do(seed: int) -> None:
    rng = random.Random(seed)
    limits = replace(LIMITS, children_of_tenant=rng.randrange(3))
    crew, now_ns, num_works = ProcessPool(limits), 0, 0
    processes: dict[int, int | None] = {}  # the work of each that lives
    killed: set[int] = set()
    open_works: set[int] = set()

    def perform(effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start():
                    assert effect.child not in processes, "two processes in one place"
                    processes[effect.child] = None
                case Kill():
                    killed.add(effect.child)
                case Give():
                    assert processes[effect.child] is None, "two pieces of work at once"
                    assert effect.child not in killed
                    assert effect.work in open_works
                    processes[effect.child] = effect.work
                case Fail():
                    open_works.remove(effect.work)

    def end(child: int) -> None:
        del processes[child]
        killed.discard(child)
        perform(crew.on_ended(child, now_ns))

    def step(*, is_calm: bool) -> None:
        nonlocal num_works, now_ns
        now_ns += rng.randrange(60)
        perform(crew.on_tick(now_ns))
        for child in sorted(killed):
            end(child)
        if not is_calm and rng.random() < 0.6:
            num_works += 1
            open_works.add(num_works)
            perform(crew.on_work(num_works, now_ns, rng.choice([A, B, C])))
        for child in sorted(processes):
            if child in killed or child not in processes:
                continue
            chance, work = rng.random(), processes[child]
            if work is None:
                perform(crew.on_ready(child, now_ns))
            elif chance < 0.3:
                crew.on_begun(child, now_ns)
            elif chance < 0.6:
                processes[child] = None
                open_works.discard(work)
                perform(crew.on_done(child, now_ns))
            elif chance < 0.75 and not is_calm:
                end(child)

    if rng.random() < 0.5:
        perform(crew.on_open(now_ns))
    for _ in range(60):
        step(is_calm=False)
    for _ in range(400):
        step(is_calm=True)
        if not open_works:
            break
    assert not open_works, f"seed {seed}: {open_works} never ended"


def test_tenants_that_come_again_and_again_do_not_starve_one_that_waits() -> None:
    pool = ProcessPool(replace(LIMITS, num_children=1, children_of_tenant=1, waiting_max=8))
    assert pool.on_work(1, 0, A) == [Start(0)]
    assert pool.on_ready(0, 0) == [Give(0, 1)]
    assert pool.on_work(2, 0, A) == pool.on_work(10, 0, B) == []
    assert pool.on_done(0, 1) == [Give(0, 10)]
    assert pool.on_work(20, 1, C) == []
    assert pool.on_done(0, 2) == [Give(0, 20)]
    assert pool.on_work(11, 2, B) == [], "B had its turn after A"
    assert pool.on_done(0, 3) == [Give(0, 2)]
