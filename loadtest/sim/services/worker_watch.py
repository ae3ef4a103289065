"""What must hold of a running worker from one event to the next.

The service's own cores are watched: each gets a subclass that checks what passes through it.
"""

from typing import Protocol

from loadtest.sim.network import Message, Network, Peer
from loadtest.sim.services.checks import check_deferred, watch_step
from loadtest.sim.services.copying import Copies
from loadtest.sim.timeline import SECOND
from services.scheduler.core.turns.turn_table import moving_name
from services.worker.core.effects import Effect
from services.worker.core.engine.engine import EngineCore
from services.worker.core.kv.expecting import Expected
from services.worker.core.pulling import Pull, Pulling
from services.worker.core.step import StepPlan, StepResult
from services.worker.oneshot import effects as batch_effects
from services.worker.oneshot.core import BatchCore
from shared.ids import SessionId, TenantId, TurnId, WorkerId
from shared.wire.messages import (
    BatchStart,
    KvCommit,
    KvOpen,
    KvStage,
    Prompt,
    PromptReply,
    TurnStart,
    decode,
    unpack_ints,
)
from shared.wire.subjects import KV_COMMIT, KV_OPEN, KV_STAGE

FAR_NS = 3600 * SECOND  # so long before an expected turn nothing is done for it
REPEATED_NS = 1_000_000_000  # for which a worker asks again


class Watched(Protocol):
    """A worker.

    Attributes:
        mover: of its device; None before its model is loaded.
        num_deferred: turns that steps with room for them left waiting.
        num_moved: turns that ran elsewhere and go on here.
        arrives_at_ns: when announced turns are expected.
        asked_until_ns: until when an announcement that another one replaced may be asked for.
    """

    num_deferred: int
    num_moved: int
    arrives_at_ns: dict[tuple[TenantId, SessionId], int]
    asked_until_ns: dict[tuple[TenantId, SessionId], int]

    @property
    def now_ns(self) -> int:
        """Its monotonic clock."""

    @property
    def mover(self) -> Copies | None: ...


def watch_engine(worker: Watched, core: EngineCore) -> None:
    """Check each step as it is planned and as it lands; note which turns are announced."""

    class WatchedEngine(EngineCore):
        __slots__ = ()

        def on_expected(self, expected: Expected, now_ns: int) -> list[Effect]:
            key = (expected.tenant, expected.session_id)
            if worker.arrives_at_ns.get(key, now_ns + FAR_NS) - now_ns < FAR_NS:
                worker.asked_until_ns[key] = now_ns + REPEATED_NS
            worker.arrives_at_ns[key] = expected.arrives_at_ns
            return EngineCore.on_expected(self, expected, now_ns)

        def plan_step(self, now_ns: int) -> tuple[StepPlan | None, list[Effect]]:
            plan, effects = EngineCore.plan_step(self, now_ns)
            if plan is not None and self.limits.prefill_admission == "deferred":
                worker.num_deferred += check_deferred(self, plan, now_ns)
            return plan, effects

        def on_step(self, result: StepResult, now_ns: int) -> list[Effect]:
            check = watch_step(self, result)
            effects = EngineCore.on_step(self, result, now_ns)
            check()
            return effects

    core.__class__ = WatchedEngine


def watch_prompts(worker: Watched, pulling: Pulling) -> None:
    """Check that no prompt is delivered of a turn that was cancelled before it came; count turns
    that move here while they run."""
    unwanted: set[tuple[TurnId, int]] = set()

    class WatchedPulling(Pulling):
        __slots__ = ()

        def on_start(self, start: TurnStart, now_ns: int) -> Prompt | None:
            unwanted.discard((start.turn_id, start.attempt))
            worker.num_moved += start.expected_as == moving_name(start.turn_id)
            return Pulling.on_start(self, start, now_ns)

        def on_cancel(self, turn_id: TurnId, attempt: int) -> None:
            unwanted.update(
                (ref.turn_id, ref.attempt)
                for ref in self.refs()
                if ref.turn_id == turn_id and not 0 < attempt < ref.attempt
            )
            Pulling.on_cancel(self, turn_id, attempt)

        def on_reply(
            self, pull: Pull, reply: PromptReply | None
        ) -> list[tuple[TurnStart, Prompt | None]]:
            come = Pulling.on_reply(self, pull, reply)
            for start, _ in come:
                is_wanted = (start.turn_id, start.attempt) not in unwanted
                assert is_wanted, f"{start.turn_id} was cancelled before its prompt came"
            return come

    pulling.__class__ = WatchedPulling


def watch_batches(core: BatchCore) -> None:
    """Check that no batch of a leader is taken once a higher fence was seen."""

    class WatchedBatches(BatchCore):
        def on_batch_start(self, start: BatchStart, now_ns: int) -> list[batch_effects.Effect]:
            seen = self.fences.get(start.leadership, 0)
            before = {ref.batch_id for ref in self.refs(now_ns)}
            effects = BatchCore.on_batch_start(self, start, now_ns)
            held = {ref.batch_id for ref in self.refs(now_ns)}
            is_stale = start.batch_id in held - before and start.fence < seen
            assert not is_stale, f"{start.batch_id} taken after fence {seen}"
            return effects

    core.__class__ = WatchedBatches


def tap_workers(network: Network) -> None:
    """Check what workers send to kvstores, as it leaves them."""
    connections: dict[WorkerId, str] = {}  # the latest of each worker

    def on_open(_: Peer, message: Message) -> None:
        opening = decode(KvOpen, message.data)
        connections[opening.worker_id] = opening.incarnation

    def on_commit(process: Peer, message: Message) -> None:
        """What is offloaded to the kvstore is, in every layer, the KV that its key names."""
        mover = getattr(process, "mover", None)
        commit = decode(KvCommit, message.data)
        is_lost = commit.incarnation != connections.get(commit.worker_id)
        if mover is None or mover.arena is None or is_lost:
            return  # the connection was lost meanwhile: the kvstore will refuse it
        for block in commit.blocks:
            expected = tuple(unpack_ints(block.tokens))
            for layer, page in enumerate(unpack_ints(block.pages)):
                kind, _, tokens = mover.arena.content(page)
                assert (kind, tokens) == (layer, expected), (
                    f"a block of {expected} has {tokens} in layer {layer}"
                )

    def on_stage(process: Peer, message: Message) -> None:
        """Of a session that is expected tomorrow nothing is staged, but what was asked for before
        that was announced, and is asked for again while no kvstore answers."""
        stage = decode(KvStage, message.data)
        if not stage.is_hint or stage.session_id is None:
            return
        worker: Watched = process  # type: ignore[assignment]
        key = stage.tenant, stage.session_id
        ahead_ns = worker.arrives_at_ns[key] - worker.now_ns
        is_repeated = worker.now_ns < worker.asked_until_ns.get(key, 0)
        assert ahead_ns < FAR_NS or is_repeated, (
            f"{stage.session_id} is not expected before tomorrow"
        )

    network.tap(KV_OPEN.pattern.rpartition(".")[2], on_open)
    network.tap(KV_COMMIT.pattern.rpartition(".")[2], on_commit)
    network.tap(KV_STAGE.pattern.rpartition(".")[2], on_stage)
