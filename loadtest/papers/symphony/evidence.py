"""Whether a figure's load touches what the figure is about, and marks of its rows."""

from collections.abc import Sequence

from loadtest.cluster.result import ClusterResult
from loadtest.papers.base import Results, marked

TIERS = {"arena": "host", "disk": "disk", "peer": "peer"}
LEAST_PERCENT = 20.0  # of history that is not in the pool from the turn before
NOT_EXERCISED = "not exercised"


def shares_of(result: ClusterResult) -> dict[str, float]:
    """Percent of history by where it came from: still in the GPU's pool, loaded from a tier (for a
    hint or for a turn), or computed again. What was loaded twice counts twice."""
    tokens = {name: result.loaded_tokens.get(tier, 0) for tier, name in TIERS.items()}
    tokens["recomputed"] = result.recomputed_tokens
    stayed = max(result.history_tokens - sum(tokens.values()), 0)
    whole = max(stayed + sum(tokens.values()), 1)
    return {name: round(100 * num / whole, 1) for name, num in {"pool": stayed, **tokens}.items()}


def shares_text(run: Results) -> str:
    """The shares of a run.

    >>> shares_text({"shares": {"pool": 60.0, "host": 30.4, "disk": 0.0, "recomputed": 9.6}})
    'pool 60, host 30, recomputed 10'
    """
    shares = {name: f"{percent:.0f}" for name, percent in run["shares"].items()}
    return ", ".join(f"{name} {text}" for name, text in shares.items() if text != "0")


def is_exercised(run: Results) -> bool:
    """Whether so much of the history had to come from somewhere that it mattered how.

    >>> is_exercised({"shares": {"pool": 90.0, "host": 10.0}})
    False
    """
    return bool(run["shares"]) and 100 - float(run["shares"]["pool"]) >= LEAST_PERCENT


def mark(ours: Sequence[Results], is_met: Sequence[bool]) -> str:
    """Of a row that compares runs of ours with others: met, if one that counts is.

    Args:
        ours: its runs of ours.
        is_met: whether the paper's number is met by each.

    >>> busy, idle = ({"shares": {"pool": each}} for each in (50.0, 100.0))
    >>> mark([idle], [True]), mark([idle, busy], [True, False]), mark([busy], [True])
    ('not exercised', '**missed**', 'met')
    """
    counted = [good for run, good in zip(ours, is_met, strict=True) if is_exercised(run)]
    if not counted:
        return NOT_EXERCISED
    return marked(is_met=any(counted))


def verdict(runs: Sequence[Results]) -> str:
    """In a sentence: whether a figure's load touches its mechanism."""
    moved = [100 - float(run["shares"]["pool"]) for run in runs if run["shares"]]
    if not moved:
        return "no history"
    text = f"{min(moved):.0f} to {max(moved):.0f}% of history was not in the pool"
    return text if max(moved) >= LEAST_PERCENT else f"{text}: the load does not touch it"
