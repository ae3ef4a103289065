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
        speeds = worker.speeds.get(self.model_id, DEFAULT_SPEEDS)
        num_tokens = self.num_prompt_tokens + self.num_reply_tokens
        num_blocks = ceil(num_tokens / speeds.block_tokens)
        adapter = self.adapter
        if adapter is not None and not worker.holds(adapter.adapter_hash):
            num_blocks += ceil(max(adapter.image_bytes, 0) / speeds.block_bytes)
        return Promise(num_blocks, self.num_reply_tokens)

    def fits(self, worker: Worker) -> bool:
        """Whether the turn can begin there soon."""
        return worker.fits(self.model_id, self.promise(worker).num_blocks)


class PlacementPolicy:
    """Chooses among workers that can all take the turn.

    Attributes:
        hears_hints: announced turns get reservations and prefetches.
        leaves_home: a session that was idle for `Limits.affinity_ns` has no preferred worker.
        num_looked_at: number of workers that are enough to choose among, beside those near the
            session's history; None: all workers.
    """

    hears_hints: ClassVar[bool] = True
    leaves_home: ClassVar[bool] = True
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
