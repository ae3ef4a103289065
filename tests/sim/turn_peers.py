"""The production scheduler service, alone, among workers and a frontend that follow the turn
protocol and do nothing else.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from loadtest.sim.client import Store
from loadtest.sim.process import PlainGround, Process
from loadtest.sim.services.service import Service
from loadtest.sim.timeline import MS, SECOND, Timeline
from loadtest.sim.wires import Reply, Wires
from services.scheduler.config import SchedulerConfig
from services.scheduler.service import main
from shared.ids import FrontendId, HostId, ModelId, TurnId, WorkerId
from shared.wire.messages import (
    Empty,
    ModelCard,
    Prompt,
    PromptPull,
    PromptReply,
    StepOutput,
    TurnCancel,
    TurnDelta,
    TurnEnd,
    TurnRef,
    TurnsEnded,
    TurnsStart,
    TurnsSubmit,
    TurnSubmit,
    WorkerReport,
)
from shared.wire.subjects import (
    PROMPT_PULL,
    STEP_OUTPUT,
    TURN_FAILED,
    TURN_SUBMIT,
    TURNS_ENDED,
    WORKER_CANCEL,
    WORKER_PING,
    WORKER_REPORT,
    WORKER_START,
)

FRONTEND = FrontendId("f")
CARD = ModelCard(model_id=ModelId("m"), source="m", fingerprint="f", max_model_len=4096)
REPORT_EVERY_NS = 500 * MS
STEP_NS = 60 * MS
PULL_AGAIN_NS = 300 * MS
KILLS_AFTER_NS = 5 * MS
SUBMIT_AGAIN_NS = 2 * SECOND
RESTART_MAX_NS = 4 * SECOND
BAD = {"loss": 0.05, "duplication": 0.05, "slow": 0.02, "delay_max_ns": 20 * MS}


class LoneScheduler(Service):
    """It has no spare."""

    kind = "scheduler"
    main = staticmethod(main)

    def config(self) -> SchedulerConfig:
        return SchedulerConfig(
            instance=self.name, scheduler_policy="balance", scheduler_lease="off"
        )


@dataclass
class HeldTurn:
    """An attempt on a worker.

    Attributes:
        num_tokens: made so far; None until the prompt has come.
    """

    attempt: int
    was_lost: bool
    num_tokens: int | None = None


class Worker(Process):
    """Holds attempts, pulls prompts, makes a token a step, reports."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        super().__init__(cluster.ground, f"w{number}")
        self.worker_id = WorkerId(self.name)
        self._cluster = cluster
        self._wires = cluster.wires
        self.turns: dict[TurnId, HeldTurn] = {}

    def on_start(self) -> None:
        self.turns, self._seq = {}, 0
        listen, me = self._wires.listen, self.worker_id
        listen(self, WORKER_START, lambda message, _: self._on_starts(message), me)
        listen(self, WORKER_CANCEL, lambda message, _: self._on_cancel(message), me)
        listen(self, WORKER_PING, lambda _, reply: reply(Empty()), me)
        self._report_for_ever()

    def on_crash(self) -> None:
        for turn_id in self.turns:
            self._cluster.turns[turn_id].num_deaths += 1

    def die(self, down_ns: int | None = None) -> None:
        """Crash, and start again."""
        if self.is_up:
            self.end(self._cluster.random.randrange(RESTART_MAX_NS) if down_ns is None else down_ns)

    def _on_starts(self, message: TurnsStart) -> None:
        for start in message.turns:
            held = self.turns.get(start.turn_id)
            if held is None or held.attempt < start.attempt:
                held = self.turns[start.turn_id] = HeldTurn(start.attempt, start.was_lost)
                self._pull(start.turn_id, held)

    def _on_cancel(self, cancel: TurnCancel) -> None:
        held = self.turns.get(cancel.turn_id)
        if held is not None and (not cancel.attempt or held.attempt <= cancel.attempt):
            self._end(cancel.turn_id, held, "cancelled")

    def _pull(self, turn_id: TurnId, held: HeldTurn) -> None:
        if self.turns.get(turn_id) is not held or held.num_tokens is not None:
            return
        pull = PromptPull(turns=[TurnRef(turn_id=turn_id, attempt=held.attempt)])
        self._wires.request(
            self, PROMPT_PULL, pull,
            partial(self._on_prompt, turn_id, held),
            lambda _: self._pull(turn_id, held),
            ident=FRONTEND, timeout_ns=PULL_AGAIN_NS,
        )  # fmt: skip

    def _on_prompt(self, turn_id: TurnId, held: HeldTurn, reply: Any) -> None:
        (prompt,) = reply.prompts
        if self.turns.get(turn_id) is not held or held.num_tokens is not None:
            return
        if prompt.gone:
            self._end(turn_id, held, "cancelled")
            return
        held.num_tokens = prompt.num_generated
        if self._cluster.turns[turn_id].is_poison:
            self.later(KILLS_AFTER_NS, partial(self._die_of, turn_id, held))
        else:
            self.later(STEP_NS, partial(self._step, turn_id, held))

    def _die_of(self, turn_id: TurnId, held: HeldTurn) -> None:
        if self.turns.get(turn_id) is held:
            self.die()

    def _step(self, turn_id: TurnId, held: HeldTurn) -> None:
        if self.turns.get(turn_id) is not held:
            return
        assert held.num_tokens is not None
        index, held.num_tokens = held.num_tokens, held.num_tokens + 1
        is_last = held.num_tokens >= self._cluster.turns[turn_id].num_wanted
        delta = TurnDelta(
            turn_id=turn_id, attempt=held.attempt, index=index, tokens=[1],
            finish="stop" if is_last else None,
        )  # fmt: skip
        self._wires.send(self, STEP_OUTPUT, StepOutput(deltas=[delta]), FRONTEND)
        if is_last:
            self._end(turn_id, held, "stop")
        else:
            self.later(STEP_NS, partial(self._step, turn_id, held))
        if held.was_lost:
            held.was_lost = False
            self._report()

    def _end(self, turn_id: TurnId, held: HeldTurn, reason: Any) -> None:
        del self.turns[turn_id]
        end = TurnEnd(turn_id=turn_id, attempt=held.attempt, reason=reason)
        self._wires.send(self, TURNS_ENDED, TurnsEnded(turns=[end]))

    def _report_for_ever(self) -> None:
        self._report()
        self.later(REPORT_EVERY_NS, self._report_for_ever)

    def _report(self) -> None:
        self._seq += 1
        report = WorkerReport(
            worker_id=self.worker_id, incarnation=f"{self.name}.{self.life}", seq=self._seq,
            host_id=HostId("h"), state="ready", models=[CARD], interval_ns=REPORT_EVERY_NS,
            turns=[
                TurnRef(turn_id=turn_id, attempt=each.attempt, num_generated=each.num_tokens or 0)
                for turn_id, each in self.turns.items()
            ],
        )  # fmt: skip
        self._wires.send(self, WORKER_REPORT, report)


@dataclass
class WantedTurn:
    """A turn as its frontend sees it.

    Attributes:
        is_poison: a worker dies of it as soon as it has the prompt.
        num_deaths: workers that died while they held it.
        ends: a finish reason, or the code of a failure: one of them.
    """

    submit: TurnSubmit
    num_wanted: int
    is_poison: bool = False
    attempt: int = 0
    num_tokens: int = 0
    num_deaths: int = 0
    ends: list[str] = field(default_factory=list)
    moved_at_ns: int = 0


class Frontend(Process):
    """Submits turns, answers pulls, accepts tokens of the highest attempt that pulled, and submits
    again on silence.
    """

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster.ground, "frontend")
        self._wires = cluster.wires
        self.turns: dict[TurnId, WantedTurn] = {}

    def on_start(self) -> None:
        listen = self._wires.listen
        listen(self, PROMPT_PULL, self._on_pull, FRONTEND)
        listen(self, STEP_OUTPUT, lambda message, _: self._on_step(message), FRONTEND)
        listen(self, TURN_FAILED, lambda message, _: self._on_failed(message), FRONTEND)

    def open(self, turn: WantedTurn) -> None:
        """A client asks for a turn."""
        self.turns[turn.submit.turn_id] = turn
        self._submit(turn)

    def _submit(self, turn: WantedTurn) -> None:
        if turn.ends:
            return
        if not turn.moved_at_ns or turn.moved_at_ns + SUBMIT_AGAIN_NS <= self.now_ns:
            submit = replace(turn.submit, attempt=max(turn.attempt, 1))
            self._wires.send(self, TURN_SUBMIT, TurnsSubmit(turns=[submit]), "0")
        self.later(SUBMIT_AGAIN_NS, partial(self._submit, turn))

    def _on_pull(self, pull: PromptPull, reply: Reply) -> None:
        (ref,) = pull.turns
        turn = self.turns[ref.turn_id]
        prompt = Prompt(turn_id=ref.turn_id, attempt=ref.attempt, gone=True)
        if not turn.ends and ref.attempt >= turn.attempt:
            turn.attempt, turn.moved_at_ns = ref.attempt, self.now_ns
            prompt = replace(prompt, gone=False, num_generated=turn.num_tokens)
        reply(PromptReply(prompts=[prompt]))

    def _on_step(self, step: StepOutput) -> None:
        (delta,) = step.deltas
        turn = self.turns[delta.turn_id]
        if turn.ends or delta.attempt != turn.attempt or delta.index != turn.num_tokens:
            return
        turn.num_tokens, turn.moved_at_ns = turn.num_tokens + 1, self.now_ns
        if delta.finish is not None:
            turn.ends.append(delta.finish)

    def _on_failed(self, failed: Any) -> None:
        turn = self.turns[failed.turn_id]
        if not turn.ends:
            turn.ends.append(failed.code)


class Cluster:
    """A scheduler, its workers and a frontend, on a bad network."""

    def __init__(self, seed: int, num_workers: int = 3) -> None:
        self.random = Random(f"turns {seed}")
        self.timeline = Timeline()
        self.wires = Wires(self.timeline, self.random)
        self.ground = PlainGround(self.timeline, self.random, self.wires)
        for name, value in BAD.items():
            setattr(self.wires.weather, name, value)
        self.scheduler = LoneScheduler(self.ground, "scheduler", Store())
        self.workers = [Worker(self, number) for number in range(num_workers)]
        self.frontend = Frontend(self)
        for process in (self.scheduler, *self.workers, self.frontend):
            process.start()

    @property
    def turns(self) -> dict[TurnId, WantedTurn]:
        """All that were asked for."""
        return self.frontend.turns

    def heal(self) -> None:
        """Lose no message any more."""
        weather = self.wires.weather
        weather.loss = weather.duplication = weather.slow = 0.0

    def ask(self, at_ns: int, num_wanted: int | None = None, *, is_poison: bool = False) -> None:
        """Let a client ask for a turn at this instant."""
        num_wanted = num_wanted or self.random.randint(1, 12)

        def ask() -> None:
            submit = TurnSubmit(
                turn_id=TurnId(f"t{len(self.turns)}"), frontend_id=FRONTEND,
                model_id=CARD.model_id, num_prompt_tokens=10,
            )  # fmt: skip
            self.frontend.open(WantedTurn(submit, num_wanted, is_poison))

        self.timeline.after(at_ns, lambda: self.frontend.run(self.frontend.life, ask))

    def run_until(self, end_ns: int) -> None:
        """Let time pass, no longer than until every turn has ended."""
        while self.timeline.now_ns < end_ns:
            self.timeline.run_until(min(self.timeline.now_ns + SECOND, end_ns), 1 << 62)
            if self.turns and all(turn.ends for turn in self.turns.values()):
                break
