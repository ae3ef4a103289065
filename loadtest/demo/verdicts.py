"""What the numbers say, in a sentence each. They are told as they are, also where hints lose."""

from collections.abc import Mapping
from typing import Any

SHOWS = 1.15  # a ratio of medians that is nearer to 1 is no difference: runs differ by as much


def difference(figures: Mapping[str, Any]) -> str:
    """What hints were worth in a part, and why.

    Args:
        figures: of `figures.part_figures`.
    """
    bare, hinted = figures["without"], figures["with"]
    if not figures["pairs"] or not figures["median_ratio"]:
        return "Too few turns were seen to say anything."
    slow, fast = bare["ttft_ms_median"], hinted["ttft_ms_median"]
    ratio, told = figures["median_ratio"], f"({fast:.0f} ms, {slow:.0f} without)"
    num, of = figures["sooner_with"], figures["pairs"]
    if ratio >= SHOWS and 2 * num > of:
        begin = f"With hints the median first token came {ratio:.1f} times sooner {told}"
        return f"{begin}, and sooner in {num} of {of} pairs: {_why(bare, hinted)}."
    if ratio <= 1 / SHOWS and 2 * num < of:
        begin = f"Hints lost in this run: the median first token came {1 / ratio:.1f} times later"
        return f"{begin} {told}; {_why(bare, hinted)}."
    begin = f"Hints made no difference that shows in the median first token of this run {told}"
    return f"{begin}; it came sooner in {num} of {of} pairs. With them {_why(bare, hinted)}."


def whole(figures: Mapping[str, Any], what: str) -> str:
    """What that made of the whole time.

    Args:
        what: whose.
    """
    bare, hinted = figures["without"]["whole_s"], figures["with"]["whole_s"]
    return f"{what} took {hinted:.1f} s with hints and {bare:.1f} s without."


def no_gain(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """When hints gain nothing, by what was seen of that in all parts.

    Args:
        figures: by part.
    """
    rule = "Hints gain nothing where all history is next to the GPU anyway"
    told = [
        f"in the {part}, {each['without']['near_turns']} turns without a hint found theirs there,"
        f" and had their first token after {each['without']['near_ttft_ms_median']:.0f} ms"
        for part, each in figures.items()
        if each["without"]["near_turns"]
    ]
    if not told:
        return f"{rule}; in this run no turn without a hint found its history there."
    return f"{rule}: {'; '.join(told)}."


def _why(bare: Mapping[str, Any], hinted: Mapping[str, Any]) -> str:
    return (
        f"{hinted['near_percent']:.0f}% of the history was next to the GPU when the turn came,"
        f" without them {bare['near_percent']:.0f}%"
    )
