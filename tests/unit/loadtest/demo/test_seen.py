"""What was seen of a turn, and which turns belong together."""

from hypothesis import given
from hypothesis import strategies as st

from loadtest.demo.script import SIDES, Side
from loadtest.demo.seen import Seen, Which, of_side, pairs, seen_of, where

ADA = Which("chat", 0, "Ada", 1)


def turn(which: Which = ADA, side: Side = "with", *, history: int = 101, **cached: int) -> Seen:
    return Seen(
        which=which, side=side, ttft_ms=9.0, num_prompt=history + 20, num_history=history,
        cached=cached,
    )  # fmt: skip


def test_usage_tells_where_history_was() -> None:
    details = {"cached_tokens": 90, "cached_tokens_details": {"pool": 60, "host": 30}}
    usage = {"prompt_tokens": 120, "prompt_tokens_details": details}
    seen = seen_of(ADA, "with", 12.5, usage, 101, 4.0)
    assert seen.cached == {"pool": 60, "host": 30}
    assert (seen.num_prompt, seen.num_cached, seen.num_near, seen.lead_s) == (120, 90, 60, 4.0)
    assert seen.num_recomputed == 10, "the last token of an answer never had KV"
    assert not seen.is_near and not seen.is_first


def test_where_is_told_in_words() -> None:
    assert where(turn(history=0)) == "new"
    assert where(turn(pool=100)) == "pool"
    assert where(turn(host=100)) == "host"
    assert where(turn(peer=100)) == "peer"
    assert where(turn()) == "new"
    assert where(turn(pool=97)) == "pool", "of a few tokens nothing is said"
    assert where(turn(pool=10, host=70)) == "host+new"


def test_all_of_it_is_near_or_not() -> None:
    assert turn(pool=100).is_near
    assert not turn(pool=99).is_near
    assert not turn(history=0).is_near, "it has no history"


NAMES = st.builds(
    Which, st.just("chat"), st.integers(0, 1), st.sampled_from("AB"), st.integers(0, 3)
)


@given(
    st.lists(st.tuples(NAMES, st.sampled_from(SIDES), st.integers(0, 2)), unique_by=lambda t: t[:2])
)
def test_pairs_are_of_one_name_and_of_both_sides(told: list[tuple[Which, Side, int]]) -> None:
    seen = [turn(which, side, history=history) for which, side, history in told]
    found = pairs(seen, "chat")
    for bare, hinted in found:
        assert bare.which == hinted.which
        assert (bare.side, hinted.side) == SIDES
        assert not bare.is_first and not hinted.is_first
    names = [{each.which for each in of_side(seen, "chat", side)} for side in SIDES]
    assert {bare.which for bare, _ in found} == names[0] & names[1]
    assert not pairs(seen, "team")
