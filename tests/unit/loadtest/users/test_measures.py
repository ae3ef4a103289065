"""What was seen, in numbers and in a report."""

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadtest.users.measures import Turn, percentile, places, places_of, summarise
from loadtest.users.report import JSON, MARKDOWN, write_report
from loadtest.users.watch import screen

TURNS = [
    Turn(at_s=0.0, kind="first", ttft_ms=50, tpot_ms=10, total_ms=100, num_prompt=10, num_output=6),
    Turn(
        at_s=1.0, kind="hinted", ttft_ms=20, tpot_ms=30, total_ms=90, num_prompt=100, num_output=4,
        cached={"pool": 60, "disk": 20}, outcome="used", lead_ms=1500,
    ),
    Turn(at_s=2.0, kind="unhinted", ttft_ms=40, num_prompt=100, num_output=1, cached={"pool": 50}),
    Turn(at_s=3.0, kind="unhinted", trouble="503 overloaded: later"),
]  # fmt: skip


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_a_value_with_so_many_below(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9
    assert sum(value < found for value in values) < max(percent / 100 * len(values), 1)


def test_the_summary_counts_each_turn_once() -> None:
    found = summarise(TURNS, 10.0)
    assert (found["turns"], found["failures"]) == (4, 1)
    assert found["troubles"] == {"503 overloaded: later": 1}
    assert found["turns_per_s"] == 0.3 and found["output_tokens_per_s"] == 1.1
    assert found["kinds"].keys() == {"first", "hinted", "unhinted"}
    assert found["kinds"]["hinted"] == {
        "turns": 1,
        "ttft_ms": {"mean": 20.0, "p50": 20, "p90": 20, "p99": 20},
        "prompt_tokens_mean": 100.0,
        "cached_percent": 80.0,
    }
    assert found["kinds"]["unhinted"]["turns"] == 1  # a failure has no time
    assert found["tpot_ms"] == {"p50": 10, "p90": 30, "p99": 30}
    assert found["places"] == {"pool": 110, "disk": 20, "computed": 80}
    assert sum(found["places"].values()) == found["prompt_tokens"] == 210
    assert found["hints"] == {"used": 1} and found["hint_lead_ms_p50"] == 1500
    assert summarise([], 0.0)["turns_per_s"] == 0.0


def test_places_that_are_not_told_are_said_to_be_so() -> None:
    details = {"cached_tokens": 9, "cached_tokens_details": {"pool": 4, "peer": 5, "host": 0}}
    assert places_of({"prompt_tokens_details": details}) == {"pool": 4, "peer": 5}
    assert places_of({"prompt_tokens_details": {"cached_tokens": 3}}) == {"untold": 3}
    assert places_of({}) == {}
    assert places([]) == {}


def test_the_report_is_whole(tmp_path: Path) -> None:
    found = write_report(tmp_path / "new", TURNS, {"profile": "chat"}, 10.0)
    assert orjson.loads((tmp_path / "new" / JSON).read_bytes()) == found
    text = (tmp_path / "new" / MARKDOWN).read_text()
    for words in (
        "# Load test: chat",
        "4 turns in 10 s, 1 failed",
        "| hinted | 1 | 20 | 20 | 20 | 20 | 100 | 80 % |",
        "pool 52.4 %, disk 9.5 %, computed 38.1 %",
        "Hints: used 1. Half of those sent came 1.5 s or less before their turn.",
        "- 1: 503 overloaded: later",
    ):
        assert words in text
    for name in ("ttft_cdf.png", "ttft_over_time.png", "places.png", "hints.png"):
        assert f"]({name})" in text
        assert (tmp_path / "new" / name).read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "new" / "turns.jsonl").read_bytes().splitlines()
    assert [Turn(**orjson.loads(line)) for line in lines] == TURNS


def test_a_report_of_nothing_has_no_pictures(tmp_path: Path) -> None:
    write_report(tmp_path, TURNS[3:], {"profile": "chat"}, 1.0)
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("num", [0, len(TURNS)])
def test_the_table_shows_what_was_seen_so_far(num: int) -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(screen(TURNS[:num], 8, 10.0))
    assert f"10 s, 8 users, {num} turns" in capture.get()
    assert ("unhinted" in capture.get()) == (num > 0)
