"""The interface of placement policies."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from services.scheduler.core.base.effects import PlacementReason
from services.scheduler.core.fleet.fleet_limits import Limits
from services.scheduler.core.fleet.lengths import GUESSED_TOKENS
from services.scheduler.core.fleet.records import NO_MODEL, Worker
from services.scheduler.core.fleet.room import Promise
from services.scheduler.core.fleet.speeds import DEFAULT_SPEEDS
from shared.ids import HostId, ModelId
from shared.locations import known_places, worth_keeping
from shared.wire.messages import AdapterRef, TurnSubmit
from shared.wire.urgency import is_urgent


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a turn needs of its worker, as far as it is known.

    Attributes:
        num_prompt_tokens: 0: unknown yet.
        max_tokens: of its reply; 0: unknown.
        num_reply_tokens: that it will probably make.
        slo_ttft_ms: target for the time to the first token; None: the deployment's default.
        slo_tpot_ms: target for the mean time between further tokens; None: none.
        kv_at: leading blocks of its session on the disks of hosts, as far as its frontend found.
        name: of the session, or of the turn if it has none.
        is_urgent: it has more than the usual priority.
        now_ns: time of the decision.
        ahead_ns: time until it arrives; None: unknown, but soon; 0: it is here.
        num_history_tokens: prompt tokens of its session's last turn; 0: unknown.
        idle_ns: time since that turn arrived.
    """

    model_id: ModelId = NO_MODEL
    adapter: AdapterRef | None = None
    num_prompt_tokens: int = 0
    max_tokens: int = 0
    num_reply_tokens: float = GUESSED_TOKENS
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    name: str = ""
    is_urgent: bool = False
    now_ns: int = 0
    ahead_ns: int | None = 0
    num_history_tokens: int = 0
    idle_ns: int = 0

    @classmethod
    def of(cls, submit: TurnSubmit) -> "Demand":
        """The demand of a turn that has arrived."""
        return cls(
            model_id=submit.model_id,
            adapter=submit.adapter,
            num_prompt_tokens=submit.num_prompt_tokens,
            max_tokens=submit.max_tokens,
            slo_ttft_ms=submit.slo_ttft_ms,
            slo_tpot_ms=submit.slo_tpot_ms,
            kv_at=known_places(worth_keeping(submit.kv_at)),
            name=submit.session_id or submit.turn_id,
            is_urgent=is_urgent(submit.priority),
        )

    def promise(self, worker: Worker) -> Promise:
        """What the turn takes of this worker."""
        num_tokens = self.num_prompt_tokens + self.num_reply_tokens
        num_blocks = self._num_blocks(worker, num_tokens, has_adapter=self._has_adapter(worker))
        return Promise(num_blocks, self.num_reply_tokens)

    def fits(self, worker: Worker) -> bool:
        """Whether the turn can begin there soon."""
        num_blocks = self.promise(worker).num_blocks
        return self.can_fit(worker) and worker.fits(self.model_id, num_blocks)

    def can_fit(self, worker: Worker) -> bool:
        """Whether its prompt, a token and its adapter have room there if nothing else is."""
        room = worker.rooms.get(self.model_id)
        if room is None or not room.num_blocks:
            return True
        return self._num_blocks(worker, self.num_prompt_tokens + 1) <= room.num_blocks

    def _has_adapter(self, worker: Worker) -> bool:
        return self.adapter is not None and worker.holds(self.adapter.adapter_hash)

    def _num_blocks(self, worker: Worker, num_tokens: float, *, has_adapter: bool = False) -> int:
        """Of the pool, for so many tokens and for the adapter."""
        speeds = worker.speeds.get(self.model_id, DEFAULT_SPEEDS)
        num_blocks = ceil(num_tokens / speeds.block_tokens)
        if self.adapter is not None and not has_adapter:
            num_blocks += ceil(max(self.adapter.image_bytes, 0) / speeds.block_bytes)
        return num_blocks


class PlacementPolicy:
    """Chooses among workers that can all take the turn.

    Attributes:
        hears_hints: announced turns get reservations and prefetches.
        leaves_home: a session that was idle for `Limits.affinity_ns` has no preferred worker.
        moves_turns: running turns leave workers that lack blocks or miss their targets; those of a
            worker that ends always do.
        gathers_turns: they also move as `gathers` says.
        num_looked_at: number of workers that are enough to choose among, beside those near the
            session's history; None: all workers.
    """

    hears_hints: ClassVar[bool] = True
    leaves_home: ClassVar[bool] = True
    moves_turns: ClassVar[bool] = False
    gathers_turns: ClassVar[bool] = False
    num_looked_at: ClassVar[int | None] = None

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def has_room(self, worker: Worker, demand: Demand) -> bool:
        """Whether a turn that is here may be sent there; if it may be sent nowhere, it waits in the
        scheduler.
        """
        return demand.fits(worker)

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        """The worker for one turn.

        Args:
            demand: what it needs. `Worker.turns` has what the workers' other turns need.
            workers: at least one, in arbitrary order.
            home: the worker of the session's last turn, if it is one of them: its pages may still
                hold the session's KV.
        """
        raise NotImplementedError

    def better_than(
        self, kept: Worker, workers: Collection[Worker], demand: Demand, *, is_sent: bool
    ) -> Worker | None:
        """A worker that is worth abandoning an arrived turn's reservation for; None: keep it.

        Args:
            kept: the reserved worker.
            workers: as in `choose`; `kept` may be one of them.
            is_sent: the frontend has sent the turn to `kept`, where it would have to be cancelled.
        """
        return None

    def steps_ms(self, worker: Worker, demand: Demand) -> tuple[float, float]:
        """What a step of the turns there takes, and of one turn more."""
        return 0.0, 0.0

    def step_ms(self, worker: Worker, model_id: ModelId) -> float:
        """What a step of the turns there takes."""
        return self.steps_ms(worker, Demand(model_id=model_id))[0]

    def gathers(self, worker: Worker, target: Worker) -> bool:
        """Whether a turn is to move to `target`, which was chosen for it, so that its worker
        has less to do.
        """
        return False


def burden(worker: Worker) -> tuple[int, int, int, int, str]:
    """Tie-breaker among workers of equal cost: the least is best."""
    report = worker.report
    num_pages_takeable = report.num_pages_free + report.num_pages_clean
    return (
        worker.num_expected,
        worker.num_far,
        worker.num_waiting_tokens,
        -num_pages_takeable,
        report.worker_id,
    )
