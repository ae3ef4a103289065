"""What a simulated cluster did."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Spread:
    """Of times, milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class PrefetchCounts:
    """Of advisories, as the tracker counts them: their turns came, or did not, or came before a
    place was kept, as all do where no places are kept; and turns that had none."""

    used: int
    wasted: int
    late: int
    missed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """Attributes:
    ttft_ms, tpot_ms: over all turns that ended.
    normalized_ms: whole time of a turn by its output tokens (Figure 19's measure).
    by_priority: the same by priority: `{"urgent": {"ttft_ms", "tpot_ms"}}`.
    requests_per_s: turns that ended, a second of the workload.
    load_max_over_median: turns on the fullest GPU over those on the median one, in the mean over
        the time.
    load_max_minus_min: how many turns more the fullest GPU has than the emptiest, in the mean over
        the time (Figure 15).
    history_tokens: of prompts, that had been computed before; `recomputed_tokens`: of those, again.
    prompt_tokens: of all turns, history included.
    cached_tokens: of those, by where their KV was when the turn came.
    loaded_tokens: of KV that was brought to GPUs, for hints too, by where it was.
    return_ttft_ms: of turns with history alone.
    workflow_s: from the first turn's arrival to the last one's end, of scripts that came to
        their end; `workflows` are all.
    spurious: advisories that were sent for nothing.
    """

    turns: int
    failed: int
    unfinished: int
    ttft_ms: Spread
    tpot_ms: Spread
    normalized_ms: Spread
    by_priority: dict[str, dict[str, Spread]]
    requests_per_s: float
    tokens_per_s: float
    load_max_over_median: float
    recomputed_tokens: int
    prompt_tokens: int
    prefetch: PrefetchCounts
    loaded_tokens: dict[str, int]
    workflow_s: list[float] = field(default_factory=list)
    workflows: int = 0
    spurious: int = 0
    load_max_minus_min: float = 0.0
    cached_tokens: dict[str, int] = field(default_factory=dict)
    history_tokens: int = 0
    return_ttft_ms: Spread = Spread(0.0, 0.0, 0.0, 0.0)
    took_s: float = 0.0
