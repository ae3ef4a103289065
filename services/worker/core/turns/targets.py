"""Which targets turns met, counted for metrics."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from services.worker.core.turns.turn import Turn

Target: TypeAlias = Literal["ttft", "tpot"]
Outcome: TypeAlias = Literal["met", "missed"]


@dataclass(slots=True)
class TargetCounts:
    """Attributes:
    totals: turns by target, and whether it was met. A turn counts where its first token was chosen,
        and where it came to its end by itself; without a target it does not count.
    """

    totals: Counter[tuple[Target, Outcome]] = field(default_factory=Counter)

    def on_first_token(self, turn: Turn, target_ns: int, now_ns: int) -> None:
        """A turn has the first token of its attempt.

        Args:
            target_ns: for the time to it; 0: none.
        """
        if target_ns and not turn.request.num_generated_before:
            self._count("ttft", now_ns - turn.request.arrived_at_ns, target_ns)

    def on_last_token(self, turn: Turn, now_ns: int) -> None:
        """A turn has its last token: how long it waited for each one after the first, in the mean
        of those that were chosen here."""
        num_gaps = len(turn.tokens) - turn.num_known - 1
        if turn.targets.slo_tpot_ns and num_gaps > 0 and turn.trace.first_token_at_ns is not None:
            self._count(
                "tpot", now_ns - turn.trace.first_token_at_ns, num_gaps * turn.targets.slo_tpot_ns
            )

    def _count(self, target: Target, took_ns: int, target_ns: int) -> None:
        self.totals[target, "met" if took_ns <= target_ns else "missed"] += 1
