"""A scheduler core and short words for what happens to it."""

from collections.abc import Callable
from typing import TypeVar

from services.scheduler.core import (
    POLICIES,
    CancelTurn,
    Effect,
    FailTurn,
    Limits,
    PlacementPolicy,
    SchedulerCore,
    StartTurn,
)
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.turns.core import EVERYTHING
from shared.blocks import BLOCK_TOKENS
from shared.effects import WakeAt
from shared.ids import FrontendId, HostId, ModelId, SessionId, TurnId, WorkerId
from shared.wire.messages import (
    AdapterRef,
    AdvisoryKey,
    AgentPrefix,
    AgentRef,
    ExpectSession,
    ModelCard,
    ModelRoom,
    ModelSpeeds,
    SessionPlacement,
    StepModelFit,
    TurnCancel,
    TurnEnd,
    TurnRef,
    TurnsEnded,
    TurnsSubmit,
    TurnSubmit,
    WorkerReport,
    pack_hashes,
)
from shared.wire.messages.adapters import HASH_CHARS
from shared.wire.shards import Share

E = TypeVar("E")

MS = 1_000_000
SECOND = 1_000 * MS
INTERVAL = 500 * MS


def card(model: str, block_tokens: int = BLOCK_TOKENS) -> ModelCard:
    return ModelCard(
        model_id=ModelId(model),
        source=model,
        fingerprint=model,
        max_model_len=4096,
        block_tokens=block_tokens,
    )


def adapter_of(name: str, lora_rank: int = 8, image_bytes: int = 0) -> AdapterRef:
    """The adapter whose hash is a letter again and again."""
    return AdapterRef(
        adapter_hash=name * HASH_CHARS, name=name, lora_rank=lora_rank, image_bytes=image_bytes
    )


class Driver:
    """Moves time by hand; every call returns the effects of one kind or all of them."""

    def __init__(
        self,
        limits: Limits | None = None,
        attempt_floor: int = 1,
        policy: str | Callable[[Limits], PlacementPolicy] = "balance",
        share: Share = EVERYTHING,
    ) -> None:
        self.limits = limits or Limits(learning_ns=0)
        self.now_ns = SECOND
        make = POLICIES[policy] if isinstance(policy, str) else policy
        made = make(self.limits)
        self.core = SchedulerCore(made, self.limits, self.now_ns, attempt_floor, share)
        self.seqs: dict[str, int] = {}
        self.alarm_ns: int | None = None
        self.wake()

    def report(
        self,
        worker: str,
        *turns: tuple[str, int],
        incarnation: str = "a",
        models: tuple[str, ...] = ("m",),
        state: str = "ready",
        seq: int | None = None,
        waiting_tokens: int = 0,
        pages_free: int = 0,
        generated: int = 0,
        adapters: str = "",
        running: AdapterRef | None = None,
        host: str = "h",
        speeds: ModelSpeeds | None = None,
        seats: int = 0,
        room: ModelRoom | None = None,
        lora: StepModelFit | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> list[Effect]:
        key = f"{worker}/{incarnation}"
        self.seqs[key] = self.seqs.get(key, 0) + 1 if seq is None else seq
        report = WorkerReport(
            worker_id=WorkerId(worker),
            incarnation=incarnation,
            seq=self.seqs[key],
            host_id=HostId(host),
            state=state,  # type: ignore[arg-type]
            models=[card(model, block_tokens) for model in models],
            turns=[
                TurnRef(
                    turn_id=TurnId(t),
                    attempt=a,
                    num_generated=generated,
                    adapter_hash="" if running is None else running.adapter_hash,
                    lora_rank=0 if running is None else running.lora_rank,
                )
                for t, a in turns
            ],
            adapters=pack_hashes(adapter_of(name).adapter_hash for name in adapters),
            num_waiting_tokens=waiting_tokens,
            num_pages_free=pages_free,
            interval_ns=INTERVAL,
            turns_running_max=seats,
            rooms=[] if room is None else [room],
            step_models=[] if lora is None else [lora],
            speeds=[] if speeds is None else [speeds],
        )
        return self.note(self.core.on_report(report, self.now_ns))

    def submit(
        self,
        turn: str,
        session: str | None = None,
        *,
        model: str = "m",
        attempt: int = 1,
        priority: int = 0,
        prompt: str = "",
        sent_to: str | None = None,
        adapter: AdapterRef | None = None,
        slo_tpot_ms: float | None = None,
        slo_ttft_ms: float | None = None,
        max_tokens: int = 0,
        kv_at: dict[str, int] | None = None,
        num_tokens: int = 100,
        agent: AgentRef | None = None,
    ) -> list[Effect]:
        message = TurnSubmit(
            turn_id=TurnId(turn),
            frontend_id=FrontendId("f"),
            model_id=ModelId(model),
            num_prompt_tokens=num_tokens,
            attempt=attempt,
            session_id=SessionId(session) if session else None,
            priority=priority,
            prompt=prompt,
            sent_to=WorkerId(sent_to) if sent_to else None,
            adapter=adapter,
            slo_tpot_ms=slo_tpot_ms,
            slo_ttft_ms=slo_ttft_ms,
            max_tokens=max_tokens,
            kv_at={HostId(host): num_blocks for host, num_blocks in (kv_at or {}).items()},
            agent=agent,
        )
        return self.note(self.core.on_turns_submit(TurnsSubmit(turns=[message]), self.now_ns))

    def cancel(self, turn: str) -> list[Effect]:
        return self.note(self.core.on_turn_cancel(TurnCancel(turn_id=TurnId(turn)), self.now_ns))

    def end(self, worker: str, turn: str, attempt: int = 1) -> list[Effect]:
        end = TurnEnd(turn_id=TurnId(turn), attempt=attempt, reason="stop")
        message = TurnsEnded(turns=[end])
        return self.note(self.core.on_turns_ended(message, self.now_ns))

    def expect(
        self,
        session: str,
        *,
        model: str | None = "m",
        expires_s: float = 60,
        priority: int = 1,
        adapter: AdapterRef | None = None,
        arrives_s: float = 0,
        kv_at: dict[str, int] | None = None,
        prefix: AgentPrefix | None = None,
        trace: str = "",
    ) -> tuple[SessionPlacement, list[Effect]]:
        message = ExpectSession(
            session_id=SessionId(session),
            model_id=ModelId(model) if model else None,
            priority=priority,
            expires_in_ns=int(expires_s * SECOND),
            adapter=adapter,
            arrives_in_ns=int(arrives_s * SECOND),
            kv_at={HostId(host): num_blocks for host, num_blocks in (kv_at or {}).items()},
            prefix=prefix,
            trace=trace,
        )
        placement, effects = self.core.on_expect(message, self.now_ns)
        return placement, self.note(effects)

    def drop(self, session: str) -> list[Effect]:
        return self.note(self.core.on_drop(AdvisoryKey(session_id=SessionId(session)), self.now_ns))

    def gone(self, worker: str) -> list[Effect]:
        return self.note(self.core.on_worker_gone(WorkerId(worker), self.now_ns))

    def wake(self, after_ns: int = 0) -> list[Effect]:
        """Let time pass, waking the core when it asks to be woken, and at the end."""
        end_ns, effects = self.now_ns + after_ns, list[Effect]()
        while self.alarm_ns is not None and self.alarm_ns < end_ns:
            self.now_ns = max(self.alarm_ns, self.now_ns)
            self.alarm_ns = None
            effects += self.note(self.core.on_wake(self.now_ns))
        self.now_ns, self.alarm_ns = end_ns, None
        return effects + self.note(self.core.on_wake(self.now_ns))

    def stand_still(self, for_ns: int) -> list[Effect]:
        """Nothing is told to the core for so long, not even that the time it asked for has come."""
        self.now_ns += for_ns
        self.alarm_ns = None
        return self.note(self.core.on_wake(self.now_ns))

    def workers(self) -> list[Worker]:
        """Everything it knows of its workers."""
        return list(self.core._fleet)

    def note(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, WakeAt):
                self.alarm_ns = effect.at_ns
        return effects

    def load(self, worker: str) -> int:
        for status in self.core.status(self.now_ns).workers:
            if status.worker_id == worker:
                return status.num_turns + status.num_reservations
        raise AssertionError(f"no worker {worker}")


def only(kind: type[E], effects: list[Effect]) -> list[E]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def starts(effects: list[Effect]) -> list[tuple[str, str, int, str]]:
    """Worker, turn, attempt and reason of every start."""
    return [
        (e.worker_id, e.start.turn_id, e.start.attempt, e.reason) for e in only(StartTurn, effects)
    ]


def cancels(effects: list[Effect]) -> list[tuple[str, str, int]]:
    """Worker, turn and attempt of every cancel."""
    return [(e.worker_id, e.cancel.turn_id, e.cancel.attempt) for e in only(CancelTurn, effects)]


def failures(effects: list[Effect]) -> list[tuple[str, int]]:
    """Code and HTTP status of every failure."""
    return [(e.failed.code, e.failed.http_status) for e in only(FailTurn, effects)]
