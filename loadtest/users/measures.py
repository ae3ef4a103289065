"""What was seen of each turn, and what that comes to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

# A session's first turn has no history that could be prefetched; `missed` are those that a user who
# hints sent without one, as most of what is pasted.
KINDS = ("first", "hinted", "missed", "unhinted")
PLACES = ("pool", "host", "disk", "peer", "objects", "untold", "computed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn as its sender saw it.

    Attributes:
        at_s: when it was sent, from the beginning of the run.
        kind: one of `KINDS`.
        ttft_ms, total_ms: 0 if nothing came.
        tpot_ms: between the first token and the last, a token; None: it had one token.
        num_prompt, num_output: tokens.
        cached: prompt tokens that were not computed, by where they were.
        outcome: what became of its hint; empty: it had none.
        lead_ms: from the hint to the turn.
        trouble: why it failed; empty: it did not.
    """

    at_s: float
    kind: str
    ttft_ms: float = 0.0
    tpot_ms: float | None = None
    total_ms: float = 0.0
    num_prompt: int = 0
    num_output: int = 0
    cached: dict[str, int] = field(default_factory=dict)
    outcome: str = ""
    lead_ms: float = 0.0
    trouble: str = ""

    def as_dict(self) -> dict[str, Any]:
        """What a Locust worker sends to its master."""
        return asdict(self)


def places_of(usage: dict[str, Any]) -> dict[str, int]:
    """Where cached tokens were, from a turn's usage.

    >>> places_of({"prompt_tokens_details": {"cached_tokens": 9, "cached_tokens_details": {"disk": 5}}})
    {'disk': 5, 'untold': 4}
    """  # noqa: E501
    details = usage.get("prompt_tokens_details") or {}
    counted = {
        str(place): int(num)
        for place, num in (details.get("cached_tokens_details") or {}).items()
        if num
    }
    rest = int(details.get("cached_tokens") or 0) - sum(counted.values())
    return counted | ({"untold": rest} if rest > 0 else {})


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that so many percent are not above; 0 of none.

    >>> percentile([3, 1, 2, 4], 50), percentile([3, 1, 2, 4], 99), percentile([], 50)
    (2, 4, 0.0)
    """
    ordered = sorted(values)
    return ordered[max(ceil(percent / 100 * len(ordered)), 1) - 1] if ordered else 0.0


def summarise(turns: Sequence[Turn], seconds: float) -> dict[str, Any]:
    """Everything that a report says in numbers. Failed turns count as failures only.

    Args:
        seconds: that the run took.
    """
    good = [turn for turn in turns if not turn.trouble]
    tpot = [turn.tpot_ms for turn in good if turn.tpot_ms is not None]
    hints = Counter(turn.outcome for turn in turns if turn.outcome)
    return {
        "seconds": round(seconds, 1),
        "turns": len(turns),
        "failures": len(turns) - len(good),
        "troubles": dict(Counter(turn.trouble for turn in turns if turn.trouble).most_common(10)),
        "turns_per_s": round(len(good) / seconds, 3) if seconds > 0 else 0.0,
        "output_tokens_per_s": (
            round(sum(turn.num_output for turn in good) / seconds, 1) if seconds > 0 else 0.0
        ),
        "kinds": {
            kind: _kind([turn for turn in good if turn.kind == kind])
            for kind in KINDS
            if any(turn.kind == kind for turn in good)
        },
        "tpot_ms": {f"p{percent}": round(percentile(tpot, percent), 2) for percent in (50, 90, 99)},
        "prompt_tokens": sum(turn.num_prompt for turn in good),
        "places": places(good),
        "hints": dict(sorted(hints.items())),
        "hint_lead_ms_p50": round(percentile([t.lead_ms for t in turns if t.lead_ms], 50), 1),
    }


def places(turns: Iterable[Turn]) -> dict[str, int]:
    """Prompt tokens by where they were, those of none computed; places without any are left out."""
    found: Counter[str] = Counter()
    for turn in turns:
        found.update(turn.cached)
        found["computed"] += turn.num_prompt - sum(turn.cached.values())
    return {place: found[place] for place in PLACES if found[place]}


def _kind(turns: Sequence[Turn]) -> dict[str, Any]:
    ttft = [turn.ttft_ms for turn in turns]
    prompt = sum(turn.num_prompt for turn in turns)
    cached = sum(sum(turn.cached.values()) for turn in turns)
    return {
        "turns": len(turns),
        "ttft_ms": {
            "mean": round(sum(ttft) / len(ttft), 1),
            **{f"p{percent}": round(percentile(ttft, percent), 1) for percent in (50, 90, 99)},
        },
        "prompt_tokens_mean": round(prompt / len(turns), 1),
        "cached_percent": round(100 * cached / prompt, 1) if prompt else 0.0,
    }
