"""What holds of every placement policy, and what tells the other systems' from ours."""

from random import Random

import pytest

from loadtest.world.checks import check_scheduler
from services.scheduler.core import (
    POLICIES,
    CancelTurn,
    Effect,
    Limits,
    SendPrefetch,
    StartTurn,
)
from services.scheduler.core.turns.placement.baselines import Migrate
from services.scheduler.core.turns.placement.symphony import Symphony
from tests.unit.scheduler.turns.driver import MS, SECOND, Driver, only
from tests.unit.scheduler.turns.test_placement import place

UNHINTED = ["recompute", "sticky", "migrate", "migrate-sticky", "remote"]


class _Chaos:
    """Workers come, go and die, and turns with them; every start is looked at."""

    def __init__(self, policy: str, seed: int) -> None:
        self.random = Random(f"{policy} {seed}")
        self.driver = Driver(Limits(learning_ns=0, relief_gap=2), policy=policy)
        self.lives: dict[str, int] = {}
        self.num_turns = 0

    def act(self) -> None:
        d, random = self.driver, self.random
        worker = f"w{random.randrange(5)}"
        session = f"s{random.randrange(6)}"
        kv_at = {f"h{random.randrange(3)}": random.randrange(1, 40)}
        priority = random.choice([0, 1, 5])
        match random.randrange(8):
            case 0 | 1:
                self.report(worker)
            case 2 | 3:
                self.num_turns += 1
                sent_to = random.choice([None, worker])
                self.look(
                    d.submit(
                        f"t{self.num_turns}",
                        session,
                        priority=priority,
                        kv_at=kv_at,
                        sent_to=sent_to,
                        num_tokens=random.randrange(1, 4000),
                    )
                )
            case 4:
                arrives_s = random.choice([0, 0.5, 5, 200])
                effects = d.expect(session, priority=priority, kv_at=kv_at, arrives_s=arrives_s)[1]
                self.look(effects)
            case 5:
                self.look(d.drop(session) + d.end(worker, f"t{self.num_turns - 3}", attempt=9999))
            case 6:
                self.look(d.wake(random.choice([100 * MS, SECOND])) + d.gone(worker))
            case 7:
                self.lives[worker] = self.lives.get(worker, 0) + (random.random() < 0.2)

    def report(self, worker: str) -> None:
        d = self.driver
        held = next((w for w in d.core._fleet if w.worker_id == worker), None)
        turns = [] if held is None else [(t.turn_id, t.attempt) for t in held.turns.values()]
        self.look(
            d.report(
                worker,
                *turns,
                incarnation=str(self.lives.get(worker, 0)),
                host=f"h{int(worker[1:]) % 3}",
                state=self.random.choice(["ready", "ready", "ready", "draining"]),
                waiting_tokens=self.random.choice([0, 0, 5000]),
                generated=self.random.choice([0, 3]),
            )
        )

    def look(self, effects: list[Effect]) -> None:
        workers = {worker.worker_id: worker for worker in self.driver.core._fleet}
        for started in only(StartTurn, effects):
            worker = workers[started.worker_id]
            if (turn := worker.turns.get(started.start.turn_id)) is None:
                continue  # it was lost again at once
            assert worker.alive and worker.report.state == "ready", "it takes no turns"
            assert worker.isolation.turn in (None, turn), "a suspect is tried there"
        check_scheduler(self.driver.core, is_lossy=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_turns_go_only_where_they_can(policy: str) -> None:
    for seed in range(4):
        chaos = _Chaos(policy, seed)
        for _ in range(120):
            chaos.act()
        assert chaos.num_turns > 10


def three(policy: str) -> Driver:
    d = Driver(policy=policy, attempt_floor=4096)
    for number in range(3):
        d.report(f"w{number}", host=f"h{number}")
    return d


def test_every_start_says_where_history_may_come_from() -> None:
    lowest = {}
    for policy in POLICIES:
        (started,) = only(StartTurn, three(policy).submit("t", "s"))
        lowest[policy] = started.start.kv_from
    assert lowest == {
        "symphony": "any", "balance": "any", "random": "any", "remote": "any",
        "sticky": "arena", "migrate-sticky": "arena", "recompute": "pool", "migrate": "pool",
    }  # fmt: skip


@pytest.mark.parametrize("policy", UNHINTED)
def test_others_hear_no_hints(policy: str) -> None:
    d = three(policy)
    placement, effects = d.expect("s")
    assert placement.worker_id is None and not only(SendPrefetch, effects)


@pytest.mark.parametrize("policy", ["sticky", "migrate-sticky"])
def test_a_sticky_session_stays_however_busy_its_home_and_however_long_it_was_away(
    policy: str,
) -> None:
    d = three(policy)
    assert place(d.submit("t1", "s")) == ("w0", "balance")
    d.end("w0", "t1", attempt=9999)
    d.wake(2 * d.limits.affinity_ns)
    for worker in ("w1", "w2"):
        d.report(worker, host="h" + worker[1])
    d.report("w0", *[(f"x{n}", 1) for n in range(20)], host="h0", waiting_tokens=9000)
    assert place(d.submit("t2", "s")) == ("w0", "affinity")
    d.report("w0", host="h0", state="draining")
    assert place(d.submit("t3", "s"))[0] != "w0"


@pytest.mark.parametrize("policy", ["recompute", "migrate", "remote"])
def test_a_session_without_a_home_goes_where_least_is_to_do(policy: str) -> None:
    d = three(policy)
    d.submit("t1", "s")
    d.end("w0", "t1", attempt=9999)
    d.report("w0", ("x", 1), host="h0")
    assert place(d.submit("t2", "s", kv_at={"h0": 30}))[0] == "w1"


def test_random_is_drawn_by_the_turn_and_nothing_else() -> None:
    drawn = []
    for order in ((0, 1, 2), (2, 1, 0)):
        d = Driver(policy="random")
        for number in order:
            d.report(f"w{number}")
        drawn.append([place(d.submit(f"t{number}"))[0] for number in range(30)])
    assert drawn[0] == drawn[1]
    assert {drawn[0].count(f"w{number}") > 4 for number in range(3)} == {True}


def overloaded(policy: str) -> tuple[Driver, list[str]]:
    """Nine turns that have made tokens on w0, and nobody else has any."""
    d = Driver(policy=policy, attempt_floor=4096)
    d.report("w0", host="h0")
    names = [f"t{number}" for number in range(9)]
    for number, name in enumerate(names):
        d.submit(name, f"s{number}", num_tokens=1000 + number)
    d.report("w1", host="h1")
    return d, names


@pytest.mark.parametrize("policy", ["migrate", "migrate-sticky"])
def test_a_running_turn_leaves_an_overloaded_worker_with_its_kv(policy: str) -> None:
    d, names = overloaded(policy)
    held = [(name, 4096) for name in names]
    assert not only(StartTurn, d.report("w0", *held, host="h0")), "none runs yet"
    effects = d.report("w0", *held, host="h0", generated=5)
    (started,) = only(StartTurn, effects)
    (cancelled,) = only(CancelTurn, effects)
    assert (started.worker_id, started.reason) == ("w1", "relief")
    assert started.start.turn_id == cancelled.cancel.turn_id == "t0", "the shortest"
    assert started.start.attempt > cancelled.cancel.attempt == 4096
    assert started.start.kv_from == "any" and started.start.kv_at == {"h0": 16}
    d.end("w0", "t0", attempt=4096)
    assert d.load("w1") == 1, "the end of what was cancelled is not the turn's"


def test_they_leave_one_by_one_until_it_is_even_enough() -> None:
    d, names = overloaded("migrate")
    for _ in range(9):
        worker = next(w for w in d.core._fleet if w.worker_id == "w0")
        held = [(t.turn_id, t.attempt) for t in worker.turns.values()]
        d.report("w0", *held, host="h0", generated=5)
    assert (d.load("w0"), d.load("w1")) == (6, 3)
    assert d.limits.relief_gap == 4 and len(names) == 9


def test_ours_moves_no_running_turn() -> None:
    d, names = overloaded("symphony")
    held = [(name, 4096) for name in names]
    assert not only(StartTurn, d.report("w0", *held, host="h0", generated=5))
    assert Migrate.relieves and not Symphony.relieves
