"""What all turns come to, and the sentences that say so."""

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.demo.figures import hints_of, median, part_figures
from loadtest.demo.script import Part, Side
from loadtest.demo.seen import Seen, Which
from loadtest.demo.verdicts import difference, no_gain, whole


def turns(side: Side, ttft_ms: list[float], **cached: int) -> list[Seen]:
    return [
        Seen(
            which=Which("chat", 0, "Ada", number), side=side, ttft_ms=ms, num_prompt=120,
            num_history=101, cached=cached,
        )
        for number, ms in enumerate(ttft_ms, start=1)
    ]  # fmt: skip


def figures(bare: list[float], hinted: list[float]) -> dict[str, Any]:
    seen = [*turns("without", bare, host=100), *turns("with", hinted, pool=100)]
    return part_figures(seen, "chat", {"without": [4.0, 6.0], "with": [3.0]}, {})


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_the_median_is_that_of_statistics(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values))


def test_a_part_is_summed_up() -> None:
    found = figures([300, 310, 320, 10], [40, 50, 60, 20])
    assert found["without"] == {
        "turns": 4, "ttft_ms_median": 305, "ttft_ms_p99": 320, "whole_s": 5.0,
        "history_tokens": 404, "recomputed_tokens": 0, "cached_tokens": 400,
        "pool_percent": 0.0, "host_percent": 99.0, "disk_percent": 0.0, "peer_percent": 0.0,
        "computed_percent": 0.0,
        "near_turns": 0, "near_ttft_ms_median": 0.0,
    }  # fmt: skip
    assert found["with"]["pool_percent"] == 99.0 and found["with"]["near_turns"] == 4
    assert (found["pairs"], found["sooner_with"], found["median_ratio"]) == (4, 3, 6.78)


def test_first_turns_count_as_computed_and_on_no_side() -> None:
    first = Seen(
        which=Which("chat", 0, "Ada", 0), side="with", ttft_ms=9e9, num_prompt=9, num_history=0
    )
    found = part_figures([first, *turns("with", [10.0])], "chat", {}, {})
    assert found["with"]["turns"] == 1 and found["with"]["ttft_ms_p99"] == 10
    assert found["computed"] == {"turns": 1, "ttft_ms_median": 9e9, "ttft_ms_p99": 9e9}


def test_hints_are_what_counters_grew_by() -> None:
    before = {("advisories_total", "used"): 3.0, ("agent_hints_total", "given"): 1.0}
    after = {
        ("advisories_total", "used"): 10.0, ("advisories_total", "missed"): 5.0,
        ("advisories_total", "submitted"): 8.0, ("agent_hints_total", "given"): 1.0,
    }  # fmt: skip
    assert hints_of(before, after) == {"advisories": {"submitted": 8, "used": 7}, "by_house": {}}


def test_a_gain_is_told_with_its_reason() -> None:
    said = difference(figures([300, 310, 320, 330, 290], [40, 50, 60, 30, 70]))
    assert "6.2 times sooner (50 ms, 310 without)" in said and "5 of 5 pairs" in said
    assert "99% of the history was next to the GPU" in said and "without them 0%" in said


def test_a_loss_is_told_as_one() -> None:
    said = difference(figures([40, 50, 60, 30, 70], [300, 310, 320, 330, 290]))
    assert said.startswith("Hints lost") and "6.2 times later" in said


def test_no_difference_is_told_as_none() -> None:
    assert "no difference" in difference(figures([100, 100, 100], [95, 105, 99]))
    uneven = [300.0, 300, 300, 300, 10, 10, 10], [30.0, 30, 30, 30, 20, 20, 20]
    assert "no difference" in difference(figures(*uneven)), "4 of 7 pairs may be chance"
    assert "no difference" in difference(figures(*reversed(uneven)))
    assert "no difference" in difference(figures([300] * 4, [30] * 4)), "so may 4 of 4"
    assert "Too few" in difference(figures([], []))


def test_a_median_that_most_pairs_deny_is_no_gain_and_no_loss() -> None:
    one = [10.0] * 5 + [100.0] * 4 + [1000.0] * 2
    other = [11.0] * 5 + [101.0] * 4 + [1.0] * 2
    found = figures(one, other)
    assert found["median_ratio"] > 9 and found["sooner_with"] == 2
    assert "no difference" in difference(found)
    assert "no difference" in difference(figures(other, one))


def test_as_soon_is_not_sooner() -> None:
    assert figures([50, 60], [50, 10])["sooner_with"] == 1


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1))
def test_nobody_wins_on_both_sides(times: list[tuple[float, float]]) -> None:
    one, other = ([pair[side] for pair in times] for side in (0, 1))
    there, back = difference(figures(one, other)), difference(figures(other, one))
    wins = [each.startswith("With hints the median") for each in (there, back)]
    losses = [each.startswith("Hints lost") for each in (there, back)]
    assert not all(wins) and not all(losses)
    if median(one) < median(other):
        assert not wins[0] and not losses[1]


def test_when_hints_gain_nothing_is_told_by_what_was_seen() -> None:
    found: dict[Part, dict[str, Any]] = {"chat": figures([300], [40])}
    assert "no turn without a hint found its history there" in no_gain(found)
    near = part_figures(turns("without", [40, 50], pool=100), "chat", {}, {})
    assert "in the chat, 2 of 2 turns" in no_gain({"chat": near}) and "45 ms" in no_gain(
        {"chat": near}
    )


def test_the_whole_time_of_both_sides_is_told() -> None:
    said = whole(figures([300], [40]), "A team")
    assert said == "A team took 3.0 s with hints and 5.0 s without."
