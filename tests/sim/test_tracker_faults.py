"""Tracker and scheduler cores over a bad network: every advisory's life ends once, no place stays
kept.
"""

from collections import Counter
from functools import partial

import pytest

from services.scheduler.core import POLICIES, NotifyArrival, SchedulerCore, StartTurn
from services.scheduler.core import Effect as SchedulerEffect
from services.scheduler.core import Limits as SchedulerLimits
from services.tracker.core import Count, Drop, Effect, Expect, Limits, TrackerCore
from shared.effects import WakeAt
from shared.errors import NotFound
from shared.ids import FrontendId, HostId, SessionId, TurnId, WorkerId
from shared.messages import (
    Advisory,
    AdvisoryKey,
    ExpectSession,
    TurnArrived,
    TurnEnd,
    TurnsEnded,
    TurnsSubmit,
    TurnSubmit,
    WorkerReport,
)
from tests.sim.heap import MS, SECOND, Network, World
from tests.sim.scheduler_world import CARD, MODEL

NUM_SEEDS = 60
FAULTS_FOR = 60 * SECOND
CALM_FOR = 120 * SECOND
ANSWER_TIMEOUT = 2 * SECOND


class Desk:
    """A tracker and a scheduler; each turn ends as soon as it is started."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.network = Network(self.world, loss=0.1)
        self.outcomes: Counter[str] = Counter()
        self.tracker = TrackerCore(Limits())
        limits = SchedulerLimits()
        self.scheduler = SchedulerCore(POLICIES["balance"](limits), limits, 0)
        self.seq = 0
        self.perform_scheduler(self.scheduler.on_wake(0))
        self.report()

    def report(self) -> None:
        self.seq += 1
        report = WorkerReport(
            worker_id=WorkerId("w"),
            incarnation="i",
            seq=self.seq,
            host_id=HostId("h"),
            state="ready",
            models=[CARD],
        )
        self.perform_scheduler(self.scheduler.on_report(report, self.world.now_ns))
        self.world.after(500 * MS, self.report)

    def submit(self, session: str) -> None:
        random = self.world.random
        arrival = random.choice([None, 5 * random.random()])
        advisory = Advisory(
            session_id=SessionId(session),
            model_id=MODEL,
            expected_arrival=arrival,
            priority=random.randrange(10),
        )
        self.perform(self.tracker.on_submit(advisory, self.world.now_ns)[1])

    def invalidate(self, session: str) -> None:
        key = AdvisoryKey(session_id=SessionId(session))
        try:
            self.perform(self.tracker.on_invalidate(key, self.world.now_ns)[1])
        except NotFound:
            self.world.note(f"{session} was never announced")

    def turn(self, session: str, number: int) -> None:
        submit = TurnSubmit(
            turn_id=TurnId(f"t{number}"),
            frontend_id=FrontendId("f"),
            model_id=MODEL,
            num_prompt_tokens=1,
            session_id=SessionId(session),
        )
        self.perform_scheduler(
            self.scheduler.on_turns_submit(TurnsSubmit(turns=[submit]), self.world.now_ns)
        )

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Expect(message):
                    self.ask(message)
                case Drop(key):
                    self.network.send(partial(self.drop, key))
                case Count(outcome):
                    self.world.note(outcome)
                    self.outcomes[outcome] += 1
                case WakeAt(at_ns):
                    self.world.after(max(at_ns - self.world.now_ns, 0), self.wake)

    def ask(self, message: ExpectSession) -> None:
        """A request that is answered, or times out: one of the two, once, as the bus has it."""
        key = AdvisoryKey(session_id=message.session_id)
        answers: list[WorkerId | None] = []

        def answer(worker_id: WorkerId | None) -> None:
            if not answers:
                answers.append(worker_id)
                self.perform(self.tracker.on_placed(key, worker_id, self.world.now_ns))

        def expect() -> None:
            placement, effects = self.scheduler.on_expect(message, self.world.now_ns)
            self.perform_scheduler(effects)
            self.network.send(partial(answer, placement.worker_id))

        self.network.send(expect)
        self.world.after(ANSWER_TIMEOUT, partial(answer, None))

    def drop(self, key: AdvisoryKey) -> None:
        self.perform_scheduler(self.scheduler.on_drop(key, self.world.now_ns))

    def wake(self) -> None:
        self.perform(self.tracker.on_wake(self.world.now_ns))

    def perform_scheduler(self, effects: list[SchedulerEffect]) -> None:
        now_ns = self.world.now_ns
        for effect in effects:
            if isinstance(effect, NotifyArrival):
                self.network.send(partial(self.arrive, effect.arrived))
            elif isinstance(effect, StartTurn):
                start = effect.start
                end = TurnEnd(turn_id=start.turn_id, attempt=start.attempt, reason="stop")
                message = TurnsEnded(turns=[end])
                self.world.after(MS, partial(self.end, message))
            elif isinstance(effect, WakeAt):
                self.world.after(max(effect.at_ns - now_ns, 0), self.wake_scheduler)

    def arrive(self, arrived: TurnArrived) -> None:
        self.perform(self.tracker.on_turn_arrived(arrived, self.world.now_ns))

    def end(self, message: TurnsEnded) -> None:
        self.perform_scheduler(self.scheduler.on_turns_ended(message, self.world.now_ns))

    def wake_scheduler(self) -> None:
        self.perform_scheduler(self.scheduler.on_wake(self.world.now_ns))


def run_desk(seed: int) -> Desk:
    """Random advisories, invalidations and turns, then calm until all of it must be over."""
    desk = Desk(seed)
    world, random = desk.world, desk.world.random
    for number in range(40):
        session = f"s{random.randrange(8)}"
        at_ns = random.randrange(FAULTS_FOR)
        for _ in range(random.randrange(4)):
            world.after(max(at_ns - random.randrange(8 * SECOND), 0), partial(desk.submit, session))
        if random.random() < 0.2:
            world.after(at_ns, partial(desk.invalidate, session))
        elif random.random() < 0.8:
            world.after(at_ns, partial(desk.turn, session, number))
    world.run_until(FAULTS_FOR)
    desk.network.heal()
    world.run_until(FAULTS_FOR + CALM_FOR)
    return desk


@pytest.mark.parametrize("first_seed", range(0, NUM_SEEDS, 20))
def test_every_advisory_ends_once_and_no_place_stays(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        desk = run_desk(seed)
        ended = sum(desk.outcomes[o] for o in ("used", "late", "expired", "invalidated"))
        assert ended == desk.outcomes["submitted"] > 0, f"seed {seed}: {desk.outcomes}"
        assert desk.tracker.num_live == 0, f"seed {seed}"
        status = desk.scheduler.status(desk.world.now_ns)
        assert status.num_reservations == status.num_turns_placed == 0, f"seed {seed}"


def test_a_seed_gives_the_same_trace_again() -> None:
    assert run_desk(5).world.trace == run_desk(5).world.trace
