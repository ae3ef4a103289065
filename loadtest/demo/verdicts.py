"""What the numbers say, in a sentence each. They are stated as they are, also where hints lose."""

from collections.abc import Mapping
from math import comb
from typing import Any

from loadtest.demo.script import Part

SHOWS = 1.15  # a ratio of medians that is nearer to 1 is no difference: runs differ by as much

CHANCE_MAX = 0.1  # of an outcome as uneven as this, if hints did nothing


def chance(num: int, of: int) -> float:
    """How likely at least so uneven a split of pairs is, if each falls to either side alike (the
    sign test, two-sided).

    >>> chance(16, 16) < 0.0001, chance(27, 48) > 0.4, chance(1, 2)
    (True, True, 1.0)
    """
    most = max(num, of - num)
    tail = sum(comb(of, each) for each in range(most, of + 1)) / 2**of
    return float(min(2 * tail, 1.0))


def difference(figures: Mapping[str, Any]) -> str:
    """What hints were worth in a part, and why.

    Args:
        figures: of `figures.part_figures`.
    """
    bare, hinted = figures["without"], figures["with"]
    if not figures["pairs"] or not figures["median_ratio"]:
        return "Too few turns were seen to say anything."
    slow, fast = bare["ttft_ms_median"], hinted["ttft_ms_median"]
    ratio, both = figures["median_ratio"], f"({fast:.0f} ms, {slow:.0f} without)"
    again = f"computed again it takes {figures['computed']['ttft_ms_median']:.0f} ms"
    num, of = figures["sooner_with"], figures["pairs"]
    is_told = chance(num, of) <= CHANCE_MAX
    if ratio >= SHOWS and is_told and 2 * num > of:
        begin = f"With hints the median first token came {ratio:.1f} times sooner {both}"
        return f"{begin}, and sooner in {num} of {of} pairs: {_why(bare, hinted)}; {again}."
    if ratio <= 1 / SHOWS and is_told and 2 * num < of:
        begin = f"Hints lost in this run: the median first token came {1 / ratio:.1f} times later"
        return f"{begin} {both}; {_why(bare, hinted)}."
    begin = "Hints made no difference to the first token that so few turns could show"
    median = f"in the median {fast:.0f} ms, {slow:.0f} without"
    return f"{begin}: {median}, sooner in {num} of {of} pairs. With them {_why(bare, hinted)}."


def whole(figures: Mapping[str, Any], what: str) -> str:
    """What that made of the whole time.

    Args:
        what: whose.
    """
    bare, hinted = figures["without"]["whole_s"], figures["with"]["whole_s"]
    return f"{what} took {hinted:.1f} s with hints and {bare:.1f} s without."


def no_gain(figures: Mapping[Part, Mapping[str, Any]]) -> str:
    """When hints gain nothing, by what was seen of that in all parts.

    Args:
        figures: by part.
    """
    rule = "Hints gain nothing where all history is next to the GPU anyway"
    worse = [
        f"in the {part}, {each['without']['near_turns']} of {each['without']['turns']} turns"
        " without a hint found theirs there, and had their first token after"
        f" {each['without']['near_ttft_ms_median']:.0f} ms"
        for part, each in figures.items()
        if each["without"]["near_turns"]
    ]
    if not worse:
        return f"{rule}; in this run no turn without a hint found its history there."
    return f"{rule}: {'; '.join(worse)}."


def _why(bare: Mapping[str, Any], hinted: Mapping[str, Any]) -> str:
    return (
        f"{hinted['pool_percent']:.0f}% of the history was next to the GPU when the turn came,"
        f" without them {bare['pool_percent']:.0f}%"
    )
