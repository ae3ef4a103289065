"""What all turns come to, in numbers."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.demo.script import SIDES, Part, Side
from loadtest.demo.seen import Seen, of_side, pairs
from loadtest.users.measures import percentile

Counts = Mapping[tuple[str, str], float]  # by metric and outcome
HISTORY_PLACES = ("pool", "host", "disk", "peer")
ADVISORIES, ANNOUNCED = "advisories_total", "agent_hints_total"
SHOWN = {
    ADVISORIES: ("submitted", "used", "late", "expired", "invalidated"),
    ANNOUNCED: ("given", "used"),
}


def median(values: Sequence[float]) -> float:
    """The middle one; 0 of none.

    >>> median([4, 1, 3]), median([]), median([1, 3])
    (3, 0.0, 2.0)
    """
    return statistics.median(values) if values else 0.0


def hints_of(before: Counts, after: Counts) -> dict[str, dict[str, int]]:
    """What became of hints between two looks at the deployment's counters; what is 0 is left out.

    `advisories` are all that the tracker got, `by_house` those that it made itself: of an agent
    whose turn it foresaw.
    """
    names = {ADVISORIES: "advisories", ANNOUNCED: "by_house"}
    found: dict[str, dict[str, int]] = {}
    for metric, outcomes in SHOWN.items():
        grown = {
            outcome: round(after.get((metric, outcome), 0) - before.get((metric, outcome), 0))
            for outcome in outcomes
        }
        found[names[metric]] = {outcome: num for outcome, num in grown.items() if num > 0}
    return found


def ttft_figures(turns: Sequence[Seen]) -> dict[str, Any]:
    """How soon the first token came."""
    ttft = [each.ttft_ms for each in turns]
    return {
        "turns": len(turns),
        "ttft_ms_median": round(median(ttft), 1),
        "ttft_ms_p99": round(percentile(ttft, 99), 1),
    }


def side_figures(turns: Sequence[Seen], wholes_s: Sequence[float]) -> dict[str, Any]:
    """Of one side.

    Args:
        turns: that go on with a conversation.
        wholes_s: how long each round of the chat, or each team, took.
    """
    history = sum(each.num_history for each in turns)
    recomputed = sum(each.num_recomputed for each in turns)
    tokens = {
        place: sum(each.cached.get(place, 0) for each in turns) for place in HISTORY_PLACES
    } | {"computed": recomputed}
    return {
        **ttft_figures(turns),
        "whole_s": round(sum(wholes_s) / len(wholes_s), 2) if wholes_s else 0.0,
        "history_tokens": history,
        "recomputed_tokens": recomputed,
        "cached_tokens": sum(each.num_cached for each in turns),
        **{
            f"{place}_percent": round(100 * num / history, 1) if history else 0.0
            for place, num in tokens.items()
        },
    }


def near_ms(turns: Iterable[Seen]) -> tuple[int, float]:
    """How many turns found all of their history next to the GPU, and their median time to the first
    token.
    """
    found = [each.ttft_ms for each in turns if each.is_near]
    return len(found), round(median(found), 1)


def part_figures(
    seen: Sequence[Seen],
    part: Part,
    wholes_s: Mapping[Side, Sequence[float]],
    hints: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """Everything of a part. `computed` are the turns that begin a conversation, as they come at the
    same pace: what the others would take if their history had to be computed again.

    Args:
        wholes_s: by side, as `side_figures` takes them.
        hints: of `hints_of`.
    """
    first = [each for each in seen if each.which.part == part and each.is_first]
    found: dict[str, Any] = {"computed": ttft_figures(first)}
    for side in SIDES:
        turns = of_side(seen, part, side)
        num, ms = near_ms(turns)
        found[side] = side_figures(turns, wholes_s.get(side, ())) | {
            "near_turns": num,
            "near_ttft_ms_median": ms,
        }
    paired = pairs(seen, part)
    slow, fast = (found[side]["ttft_ms_median"] for side in SIDES)
    return found | {
        "pairs": len(paired),
        "sooner_with": sum(hinted.ttft_ms < bare.ttft_ms for bare, hinted in paired),
        "median_ratio": round(slow / fast, 2) if fast else 0.0,
        "hints": {name: dict(each) for name, each in hints.items()},
    }
