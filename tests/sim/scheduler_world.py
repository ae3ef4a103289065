"""The production scheduler core among model workers and frontends that follow the turn protocol."""

from dataclasses import dataclass, field, replace
from functools import partial

from services.scheduler.core import (
    POLICIES,
    CancelTurn,
    CountTurn,
    Effect,
    FailTurn,
    Limits,
    NotifyArrival,
    ProbeWorker,
    SchedulerCore,
    SendPrefetch,
    StartTurn,
)
from shared.effects import WakeAt
from shared.ids import FrontendId, HostId, ModelId, SessionId, TurnId, WorkerId
from shared.wire.messages import (
    ExpectSession,
    ModelCard,
    TurnCancel,
    TurnEnd,
    TurnFailed,
    TurnRef,
    TurnsEnded,
    TurnsSubmit,
    TurnStart,
    TurnSubmit,
    WorkerReport,
)
from tests.sim.heap import MS, SECOND, Action, Network, World

MODEL = ModelId("m")
CARD = ModelCard(model_id=MODEL, source="m", fingerprint="f", max_model_len=4096)
REPORT_EVERY = 500 * MS
STEP = 60 * MS
PULL_AGAIN_AFTER = 300 * MS
KILLS_AFTER = 5 * MS
SUBMIT_AGAIN_AFTER = 2 * SECOND


class SimScheduler:
    """The core behind a lossy network; can be killed and started anew without its memory."""

    def __init__(self, house: "House") -> None:
        self.house = house
        self.is_up = False
        self.generation = 0
        self.start()

    def start(self) -> None:
        limits = Limits()
        now_ns = self.house.world.now_ns
        self.generation += 1
        self.is_up = True
        self.core = SchedulerCore(
            POLICIES["balance"](limits), limits, now_ns, attempt_floor=1 + now_ns // MS
        )
        self.perform(self.core.on_wake(now_ns))

    def crash(self) -> None:
        self.is_up = False
        self.house.world.note("scheduler crashes")

    def tell(self, handler: str, message: object) -> None:
        """Deliver an event to the core, if there is one now."""
        if self.is_up:
            effects = getattr(self.core, handler)(message, self.house.world.now_ns)
            self.perform(effects[1] if isinstance(effects, tuple) else effects)

    def perform(self, effects: list[Effect]) -> None:
        house = self.house
        for effect in effects:
            match effect:
                case StartTurn(worker_id, start, reason):
                    house.world.note(f"{start.turn_id}.{start.attempt} -> {worker_id} ({reason})")
                    worker = house.workers[worker_id]
                    house.to_worker(worker, partial(worker.on_start, start))
                case CancelTurn(worker_id, cancel):
                    worker = house.workers[worker_id]
                    house.to_worker(worker, partial(worker.on_cancel, cancel))
                case FailTurn(_, failed):
                    house.world.note(f"{failed.turn_id} fails: {failed.code}")
                    house.network.send(partial(house.frontend.on_failed, failed))
                case ProbeWorker(worker_id):
                    worker = house.workers[worker_id]
                    if not worker.is_up or worker.is_unreachable:
                        house.world.after(MS, partial(self.tell, "on_worker_gone", worker_id))
                case WakeAt(at_ns):
                    delay_ns = max(at_ns - house.world.now_ns, 0)
                    house.world.after(delay_ns, partial(self._wake, self.generation))
                case SendPrefetch() | NotifyArrival() | CountTurn():
                    pass

    def _wake(self, generation: int) -> None:
        if self.is_up and generation == self.generation:
            self.perform(self.core.on_wake(self.house.world.now_ns))


@dataclass
class HeldTurn:
    """An attempt on a worker."""

    attempt: int
    was_lost: bool
    num_tokens: int | None = None  # None until the prompt has come


class SimWorker:
    """Holds attempts, pulls prompts, makes a token a step, reports.

    Attributes:
        is_unreachable: what it sends and what is sent to it vanishes; it goes on by itself.
    """

    def __init__(self, house: "House", worker_id: str) -> None:
        self.house = house
        self.worker_id = WorkerId(worker_id)
        self.is_up = False
        self.is_unreachable = False
        self.num_starts = 0
        self.turns: dict[TurnId, HeldTurn] = {}
        self.start()

    def start(self) -> None:
        self.is_up = True
        self.num_starts += 1
        self.seq = 0
        self._report(self.num_starts)

    def crash(self) -> None:
        self.is_up = False
        for turn_id in self.turns:
            self.house.frontend.turns[turn_id].num_deaths += 1
        self.turns.clear()
        self.house.world.note(f"{self.worker_id} crashes")

    def on_start(self, start: TurnStart) -> None:
        held = self.turns.get(start.turn_id)
        if self.is_up and (held is None or held.attempt < start.attempt):
            held = self.turns[start.turn_id] = HeldTurn(start.attempt, start.was_lost)
            self._pull(start.turn_id, held)

    def on_cancel(self, cancel: TurnCancel) -> None:
        held = self.turns.get(cancel.turn_id)
        if held is not None and (not cancel.attempt or held.attempt <= cancel.attempt):
            self._end(cancel.turn_id, held, cancelled=True)

    def on_prompt(self, turn_id: TurnId, attempt: int, num_generated: int | None) -> None:
        held = self.turns.get(turn_id)
        if held is None or held.attempt != attempt or held.num_tokens is not None:
            return
        if num_generated is None:
            self._end(turn_id, held, cancelled=True)
            return
        held.num_tokens = num_generated
        if self.house.frontend.turns[turn_id].is_poison:
            self.house.world.after(KILLS_AFTER, partial(self._die_of, turn_id, held))
            return
        self.house.world.after(STEP, partial(self._step, turn_id, held))

    def _holds(self, turn_id: TurnId, held: HeldTurn) -> bool:
        return self.turns.get(turn_id) is held

    def _die_of(self, turn_id: TurnId, held: HeldTurn) -> None:
        if self._holds(turn_id, held):
            self.house.crash_worker(self)

    def _pull(self, turn_id: TurnId, held: HeldTurn) -> None:
        if self._holds(turn_id, held) and held.num_tokens is None:
            house = self.house
            self._send(
                partial(house.frontend.on_pull, self, self.num_starts, turn_id, held.attempt)
            )
            house.world.after(PULL_AGAIN_AFTER, partial(self._pull, turn_id, held))

    def _step(self, turn_id: TurnId, held: HeldTurn) -> None:
        if not self._holds(turn_id, held):
            return
        assert held.num_tokens is not None
        house, index = self.house, held.num_tokens
        held.num_tokens += 1
        is_last = held.num_tokens >= house.frontend.turns[turn_id].num_wanted
        self._send(partial(house.frontend.on_delta, turn_id, held.attempt, index, is_last))
        if is_last:
            self._end(turn_id, held)
        else:
            house.world.after(STEP, partial(self._step, turn_id, held))
        if held.was_lost:
            held.was_lost = False
            self._send_report()

    def _end(self, turn_id: TurnId, held: HeldTurn, *, cancelled: bool = False) -> None:
        del self.turns[turn_id]
        end = TurnEnd(
            turn_id=turn_id, attempt=held.attempt, reason="cancelled" if cancelled else "stop"
        )
        message = TurnsEnded(turns=[end])
        self._send(partial(self.house.scheduler.tell, "on_turns_ended", message))

    def _report(self, num_starts: int) -> None:
        if self.is_up and num_starts == self.num_starts:
            self._send_report()
            self.house.world.after(REPORT_EVERY, partial(self._report, num_starts))

    def _send_report(self) -> None:
        self.seq += 1
        report = WorkerReport(
            worker_id=self.worker_id,
            incarnation=f"{self.worker_id}-{self.num_starts}",
            seq=self.seq,
            host_id=HostId("h"),
            state="ready",
            models=[CARD],
            turns=[
                TurnRef(turn_id=t, attempt=h.attempt, num_generated=h.num_tokens or 0)
                for t, h in self.turns.items()
            ],
            interval_ns=REPORT_EVERY,
        )
        self._send(partial(self.house.scheduler.tell, "on_report", report))

    def _send(self, deliver: Action) -> None:
        if not self.is_unreachable:
            self.house.network.send(deliver)


@dataclass
class WantedTurn:
    """A turn as its frontend sees it.

    Attributes:
        is_poison: a worker dies of it as soon as it has the prompt.
        num_deaths: workers that died while they held it.
    """

    submit: TurnSubmit
    num_wanted: int
    is_poison: bool = False
    attempt: int = 0
    puller: tuple[WorkerId, int] | None = None
    num_tokens: int = 0
    num_deaths: int = 0
    outcomes: list[str] = field(default_factory=list)
    heard_at_ns: int = 0


class SimFrontend:
    """Submits turns, answers pulls, fences by attempt, and submits again on silence."""

    def __init__(self, house: "House") -> None:
        self.house = house
        self.turns: dict[TurnId, WantedTurn] = {}

    def submit(
        self, session: str | None, num_wanted: int | None = None, *, is_poison: bool = False
    ) -> None:
        turn_id = TurnId(f"t{len(self.turns)}")
        message = TurnSubmit(
            turn_id=turn_id,
            frontend_id=FrontendId("f"),
            model_id=MODEL,
            num_prompt_tokens=10,
            session_id=SessionId(session) if session else None,
        )
        num_wanted = num_wanted or self.house.world.random.randint(1, 12)
        self.turns[turn_id] = WantedTurn(message, num_wanted, is_poison)
        self._submit(turn_id)

    def cancel(self, turn_id: TurnId) -> None:
        turn = self.turns[turn_id]
        if not turn.outcomes:
            turn.outcomes.append("cancelled")
            self.house.to_scheduler("on_turn_cancel", TurnCancel(turn_id=turn_id))

    def on_pull(self, worker: SimWorker, num_starts: int, turn_id: TurnId, attempt: int) -> None:
        turn = self.turns[turn_id]
        answer = None
        if not turn.outcomes and attempt >= turn.attempt:
            puller = (worker.worker_id, num_starts)
            assert attempt > turn.attempt or turn.puller == puller, (
                f"attempt {attempt} of {turn_id} runs on {turn.puller} and {puller}"
            )
            turn.attempt, turn.puller = attempt, puller
            turn.heard_at_ns = self.house.world.now_ns
            answer = turn.num_tokens
        self.house.to_worker(worker, partial(worker.on_prompt, turn_id, attempt, answer))

    def on_delta(self, turn_id: TurnId, attempt: int, index: int, is_last: bool) -> None:
        turn = self.turns[turn_id]
        if turn.outcomes or attempt != turn.attempt or index != turn.num_tokens:
            return
        turn.num_tokens += 1
        turn.heard_at_ns = self.house.world.now_ns
        if is_last:
            turn.outcomes.append("stop")

    def on_failed(self, failed: TurnFailed) -> None:
        turn = self.turns[failed.turn_id]
        if not turn.outcomes:
            turn.outcomes.append(failed.code)

    def _submit(self, turn_id: TurnId) -> None:
        turn = self.turns[turn_id]
        if turn.outcomes:
            return
        now_ns = self.house.world.now_ns
        if turn.heard_at_ns + SUBMIT_AGAIN_AFTER <= now_ns or not turn.heard_at_ns:
            message = replace(turn.submit, attempt=max(turn.attempt, 1))
            self.house.to_scheduler("on_turns_submit", TurnsSubmit(turns=[message]))
        self.house.world.after(SUBMIT_AGAIN_AFTER, partial(self._submit, turn_id))


class House:
    """A scheduler, its workers and a frontend, all of whom may fail."""

    def __init__(self, seed: int, num_workers: int = 3) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.workers: dict[WorkerId, SimWorker] = {}
        self.frontend = SimFrontend(self)
        self.scheduler = SimScheduler(self)
        for number in range(num_workers):
            worker = SimWorker(self, f"w{number}")
            self.workers[worker.worker_id] = worker

    def to_scheduler(self, handler: str, message: object) -> None:
        self.network.send(lambda: self.scheduler.tell(handler, message))

    def to_worker(self, worker: SimWorker, deliver: Action) -> None:
        self.network.send(lambda: None if worker.is_unreachable else deliver())

    def expect(self, session: str) -> None:
        self.to_scheduler("on_expect", ExpectSession(session_id=SessionId(session), model_id=MODEL))

    def crash_worker(self, worker: SimWorker) -> None:
        if worker.is_up:
            worker.crash()
            self.world.after(self.world.random.randrange(4 * SECOND), worker.start)

    def cut_worker(self, worker: SimWorker, away_ns: int) -> None:
        """Let a worker be out of reach for a while."""
        if worker.is_unreachable:
            return
        worker.is_unreachable = True
        self.world.note(f"{worker.worker_id} is out of reach")

        def heal() -> None:
            worker.is_unreachable = False

        self.world.after(away_ns, heal)

    def crash_scheduler(self) -> None:
        if self.scheduler.is_up:
            self.scheduler.crash()
            self.world.after(self.world.random.randrange(SECOND), self.scheduler.start)
