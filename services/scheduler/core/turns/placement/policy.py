"""What a placement policy is."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from services.scheduler.core.effects import PlacementReason
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.records import Worker
from shared.ids import HostId, ModelId
from shared.locations import known_places, worth_keeping
from shared.messages import AdapterRef, TurnSubmit
from shared.urgency import is_urgent

NO_MODEL = ModelId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a turn needs of its worker, as far as it is known.

    Attributes:
        adapter: that it runs on.
        num_prompt_tokens: 0: not known yet.
        slo_ttft_ms: target for the time to the first token; None: the house's own.
        slo_tpot_ms: target for the mean time between further tokens; None: none.
        kv_at: how many leading blocks of its session are on the disks of which hosts, as far as
            its frontend could learn.
        name: the session's, or the turn's if it has none.
        is_urgent: it has more than the usual priority.
        now_ns: when it is asked.
        ahead_ns: before it comes; None: some time soon; 0: it is here.
        num_history_tokens: of the prompt of its session's last turn; 0: not known.
        idle_ns: since that came.
    """

    model_id: ModelId = NO_MODEL
    adapter: AdapterRef | None = None
    num_prompt_tokens: int = 0
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
        """Of a turn that is here."""
        return cls(
            model_id=submit.model_id,
            adapter=submit.adapter,
            num_prompt_tokens=submit.num_prompt_tokens,
            slo_ttft_ms=submit.slo_ttft_ms,
            slo_tpot_ms=submit.slo_tpot_ms,
            kv_at=known_places(worth_keeping(submit.kv_at)),
            name=submit.session_id or submit.turn_id,
            is_urgent=is_urgent(submit.priority),
        )


class PlacementPolicy:
    """Chooses among workers that all can take the turn.

    Attributes:
        hears_hints: places are kept for announced turns, and what they need is brought up.
        leaves_home: a session that was idle for `Limits.affinity_ns` has no home any more.
        num_looked_at: so many workers are enough to choose among, beside those that the session's
            history is with; None: it wants to see all.
    """

    hears_hints: ClassVar[bool] = True
    leaves_home: ClassVar[bool] = True
    num_looked_at: ClassVar[int | None] = None

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        """The worker for one turn.

        Args:
            demand: what it needs. What the workers' other turns need stands in `Worker.turns`.
            workers: at least one; in no order that means anything.
            home: the one of them that ran the session's last turn, so that its pages may still
                hold the session's KV.
        """
        raise NotImplementedError

    def better_than(
        self, kept: Worker, workers: Collection[Worker], demand: Demand, *, is_sent: bool
    ) -> Worker | None:
        """A turn is here whose place was kept: a worker that is worth giving that up for.

        Args:
            workers: as in `choose`; `kept` may be one of them.
            is_sent: its frontend has sent the turn there, so that it has to be cancelled.
        """
        return None


def burden(worker: Worker) -> tuple[int, int, int, int, str]:
    """What tells workers apart that cost the same: the least is best."""
    report = worker.report
    num_pages_takeable = report.num_pages_free + report.num_pages_clean
    return (
        worker.num_expected,
        worker.num_far,
        worker.num_waiting_tokens,
        -num_pages_takeable,
        report.worker_id,
    )
