"""What a placement policy is."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from services.scheduler.core.effects import PlacementReason
from services.scheduler.core.turns.records import Worker
from shared.ids import HostId
from shared.locations import worth_keeping
from shared.messages import AdapterRef, TurnSubmit


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
    """

    adapter: AdapterRef | None = None
    num_prompt_tokens: int = 0
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    kv_at: Mapping[HostId, int] = field(default_factory=dict)

    @classmethod
    def of(cls, submit: TurnSubmit) -> "Demand":
        """Of a turn that is here."""
        return cls(
            adapter=submit.adapter,
            num_prompt_tokens=submit.num_prompt_tokens,
            slo_ttft_ms=submit.slo_ttft_ms,
            slo_tpot_ms=submit.slo_tpot_ms,
            kv_at=worth_keeping(submit.kv_at),
        )


class PlacementPolicy(Protocol):
    """Chooses among workers that all can take the turn."""

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
        ...
