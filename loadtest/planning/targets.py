"""What answers have to be like, and what of that was missed."""

from dataclasses import dataclass
from typing import Literal

from loadtest.cluster.result import ClusterResult, Spread

Percentile = Literal["p95", "p99"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Attributes:
    ttft_ms: until the first token; `tpot_ms`: between further ones, in the mean of a turn.
    percentile: of turns for which that holds.
    """

    ttft_ms: float
    tpot_ms: float
    percentile: Percentile = "p95"

    def of(self, spread: Spread) -> float:
        """The figure that counts."""
        return spread.p95 if self.percentile == "p95" else spread.p99


def missed(result: ClusterResult, targets: Targets) -> list[str]:
    """Why a run was not good enough, each as a sentence's end; none: it was."""
    reasons = []
    if not result.turns:
        reasons.append("no turn ended")
    for name, seen, target in (
        ("first tokens", targets.of(result.ttft_ms), targets.ttft_ms),
        ("further tokens", targets.of(result.tpot_ms), targets.tpot_ms),
    ):
        if seen > target:
            reasons.append(
                f"{name} took {seen:,.0f} ms at the {targets.percentile[1:]}th percentile, and "
                f"{target:,.0f} are allowed"
            )
    if result.failed:
        reasons.append(f"{result.failed} turns failed")
    if result.unfinished:
        reasons.append(f"{result.unfinished} turns were not over two minutes after the end")
    return reasons
