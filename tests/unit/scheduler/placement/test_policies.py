"""What holds of every placement policy."""

from random import Random

import pytest

from loadtest.sim.services.checks import check_scheduler
from services.scheduler.core import (
    POLICIES,
    Effect,
    Limits,
    StartTurn,
)
from tests.unit.scheduler.turns.driver import MS, SECOND, Driver, only


class _Chaos:
    """Workers come, go and die, and turns with them; every start is looked at."""

    def __init__(self, policy: str, seed: int) -> None:
        self.random = Random(f"{policy} {seed}")
        self.driver = Driver(Limits(learning_ns=0), policy=policy)
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
        held = next((w for w in d.workers() if w.worker_id == worker), None)
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
        workers = {worker.worker_id: worker for worker in self.driver.workers()}
        for started in only(StartTurn, effects):
            worker = workers[started.worker_id]
            if (turn := worker.turns.get(started.start.turn_id)) is None:
                continue  # it was lost again at once
            assert worker.alive and worker.report.state == "ready", "it takes no turns"
            assert worker.isolation.turn in (None, turn), "a suspect is tried there"
        check_scheduler(self.driver.core, lambda _: True)


@pytest.mark.parametrize("policy", POLICIES)
def test_turns_go_only_where_they_can(policy: str) -> None:
    for seed in range(4):
        chaos = _Chaos(policy, seed)
        for _ in range(120):
            chaos.act()
        assert chaos.num_turns > 10
