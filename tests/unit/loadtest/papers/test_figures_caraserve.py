"""The figures of CaraServe, drawn from recorded results."""

import doctest
import gzip
import importlib
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from kernels.sgmv.interface import NO_ADAPTER
from loadtest.bench.sgmv.step_models import fit_models
from loadtest.functions_trace import TRACE
from loadtest.papers.base import TINY, Alone, Figure
from loadtest.papers.caraserve import SET, growing, placing, popularity, ranks
from loadtest.papers.caraserve.arrivals import OUTPUTS, PROMPTS, Traffic, turns_of
from loadtest.papers.caraserve.fits import VIEWS, cells_of
from loadtest.papers.caraserve.starts import over_better, rows_of_auto
from tests.unit.loadtest.papers.figure_views import look, page_with, recorded, without_steps

RESULTS = recorded(SET)
BY_KEY = {figure.key: figure for figure in SET.figures}
SIMULATED_LINK = "; link of 100 MB/s simulated"


def rows_of(key: str) -> dict[str, tuple[str, str, str]]:
    """The paper's and our numbers and how ours were come to, by what they are of."""
    figure = BY_KEY[key]
    return {row.what: (row[1], row[2], row[3]) for row in figure.rows(RESULTS[figure.measure])}


def test_all_figures_that_can_be_drawn_are_there() -> None:
    assert list(BY_KEY) == ["3-left", "3", "4", "9", "10", "11", "12", "13", "14", "19", "20"]


@pytest.mark.parametrize("figure", SET.figures, ids=lambda figure: figure.key)
def test_every_figure_is_drawn_and_says_how_it_was_come_to(figure: Figure) -> None:
    look(figure, RESULTS[figure.measure])


def test_batches_have_the_ranks_of_their_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    made = without_steps(ranks, monkeypatch)
    look(BY_KEY["4"], BY_KEY["4"].measure(Alone(), TINY))
    (steps,) = made
    asked = [on for on, *_ in steps.asked if len(on) == 8 and NO_ADAPTER not in on]
    assert all(len(set(on)) == 8 for on in asked), "each has its own"
    found = {tuple(steps.ranks[adapter] for adapter in on) for on in asked}
    alike = {(rank,) * 8 for rank in (8, 16, 32, 64)}
    assert found == alike | {(8,) * 7 + (64,), (8, 16, 32, 64) * 2, (8, 64) * 4}


def test_the_page_says_what_is_left_out(tmp_path: Path) -> None:
    text, _ = page_with(SET, BY_KEY["13"], RESULTS[BY_KEY["13"].measure], tmp_path)
    assert "Left out: Figures 5" in text


def test_a_padded_step_is_one_of_the_largest_rank() -> None:
    rows = rows_of("4")
    ms = RESULTS[BY_KEY["4"].measure]["batches"][-1]["ms"]
    assert rows["24 turns of rank 32, ms"][:2] == (
        "34.8 padded, 35.3 unpadded", f"{ms['32']:.1f}",
    )  # fmt: skip
    assert rows["16 turns of rank 64, ms"][0] == "35.8 padded, 35.9 unpadded"
    ours = f"{ms['64']:.1f} / {ms['8,64']:.1f} ({ms['64'] / ms['8,64']:.2f})"
    assert rows["24 turns, ranks 8 and 64 in turn: padded / unpadded, ms"][1] == ours


def test_each_model_is_fitted_to_the_kernel_that_it_is_of() -> None:
    results = RESULTS[BY_KEY["9"].measure]
    padded, unpadded, ours = VIEWS
    distinct = [row for row in results["rows"] if row["popularity"] == "distinct"]
    assert cells_of(results, padded) == cells_of(results, unpadded) == distinct
    assert cells_of(results, ours) == results["rows"] != distinct
    found = {
        "padded": fit_models(distinct, "padded")["padded"]["r2"],
        "unpadded": fit_models(distinct)["unpadded"]["r2"],
        "ours": fit_models(results["rows"])["distinct"]["r2"],
    }
    assert len(set(found.values())) == 3
    told = [ours for _, ours, _ in rows_of("9").values()]
    assert told[:3] == [f"{r2:.3f}" for r2 in found.values()]
    assert [paper for paper, _, _ in rows_of("9").values()][:3] == ["0.96", "0.96", ""]


def test_rows_over_the_link_say_that_it_is_simulated() -> None:
    for key in ("3-left", "10", "11", "13", "14"):
        assert all(how.endswith(SIMULATED_LINK) for _, _, how in rows_of(key).values())
    for what, (_, _, how) in rows_of("3").items():
        assert how.endswith(SIMULATED_LINK) == ("over" in what)


def shown(key: str, load: float, rank: int) -> dict[str, dict[str, Any]]:
    """Rows of a server under a load, by start."""
    rows = RESULTS[BY_KEY[key].measure]["rows"]
    return {row["start"]: row for row in rows if (row["load"], row["rank"]) == (load, rank)}


def test_turns_are_compared_with_those_of_a_server_that_has_all_adapters() -> None:
    rows, found = rows_of("10"), shown("10", 1.0, 64)
    for start, paper in (("wait", "far above 1"), ("assist", "near 1"), ("auto", "")):
        for name, metric in (("first token", "ttft_ms"), ("whole turn", "latency_ms")):
            what = f"rank 64, {start}, {name}, ms" + (" (over cached)" if paper else "")
            ours, cached = mean(found[start][metric]), mean(found["cached"][metric])
            assert rows[what][:2] == (paper, f"{ours:.0f} ({ours / cached:.2f})")
    found = shown("10", 0.5, 64)
    told = rows_of("13")[
        "load 0.5, rank 64, wait: first token, time per token and turn over cached"
    ]
    over = mean(found["wait"]["ttft_ms"]) / mean(found["cached"]["ttft_ms"])
    assert told[1].startswith(f"{over:.2f}, ")


def test_auto_is_held_against_the_better_of_its_two() -> None:
    ms = {"assist": (100.0, 300.0), "wait": (200.0, 200.0), "auto": (104.0, 200.0)}
    rows = [
        {"start": start, "rank": 64, "load": 1.0, "prompts": [32, 128], "ttft_ms": [*both]}
        for start, both in ms.items()
    ]
    results = RESULTS[BY_KEY["10"].measure] | {"rows": rows}
    short, long = rows_of_auto(results)
    assert (short.ours, short.mark) == ("1.04 (1.04 to 1.04)", "**missed**")
    assert (long.ours, long.mark) == ("1.00 (1.00 to 1.00)", "met")
    assert not rows_of_auto(results | {"rows": rows[:2]}), "of both, and of auto"


def test_what_chance_may_have_done_is_not_called_slower() -> None:
    spread = [100.0, 150.0, 200.0, 250.0, 300.0]
    ms = {"assist": spread, "wait": [1000.0] * 5, "auto": [220.0] * 5}
    over, low, high = over_better(ms)
    assert over == 1.1 and low < 1 < over < high
    rows = [
        {
            "start": start,
            "rank": 64,
            "load": 1.0,
            "prompts": [32] * 5 + [128],
            "ttft_ms": [*each, 1],
        }
        for start, each in ms.items()
    ]
    short, _ = rows_of_auto(RESULTS[BY_KEY["10"].measure] | {"rows": rows})
    assert short.mark == "within chance"


def test_cold_starts_are_what_turns_take_longer_than_with_all_adapters_there() -> None:
    found = shown("3-left", 1.0, 64)
    cached, waited = (sum(found[start]["latency_ms"]) for start in ("cached", "wait"))
    what = "load 1, 64 adapters: cold starts' share of all turns' time"
    assert rows_of("3-left")[what][:2] == ("20%", f"{100 * (waited - cached) / waited:.0f}%")


def test_the_same_turns_come_whatever_a_server_does() -> None:
    lone_s, several = 0.5, Traffic(2.0, 4000)
    turns = turns_of(several, 7, lone_s)
    assert turns == turns_of(several, 7, lone_s)
    assert [turn.adapter for turn in turns[:8]] == [0, 1, 2, 3, 4, 5, 6, 0]
    assert abs(turns[-1].at_s / len(turns) - lone_s / 2.0) < 0.02, "two in the time of one"
    twice = turns_of(Traffic(2.0, 4000, (0.0, 0.25, 0.75)), 3, 2 * lone_s)
    shares = [sum(turn.adapter == number for turn in twice) / 4000 for number in range(3)]
    assert shares[0] == 0 and abs(shares[1] - 0.25) < 0.03
    assert {turn.num_prompt for turn in turns} == {*PROMPTS}
    assert {turn.num_output for turn in turns} == {*range(OUTPUTS[0], OUTPUTS[1] + 1)}


def test_shares_are_those_of_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "calls.csv.gz"
    trace.write_bytes(gzip.compress(b"fn,m1,m2\na,1,0\nb,2,4\nc,0,3\n"))
    assert popularity.shares_in(trace) == [0.6, 0.3, 0.1]
    monkeypatch.setattr(popularity, "TRACE", trace)
    monkeypatch.setattr(popularity, "ROOMS", (1, 3))
    found = popularity.measure(Alone(), TINY)
    assert found["maf"]["shares"] == [0.6, 0.3, 0.1] and list(found) == ["maf", "zipf"]
    small, all_there = found["maf"]["hits"]
    assert all_there == 1 - 3 / 200 > small > 0.3
    trace.unlink()
    assert list(popularity.measure(Alone(), TINY)) == ["zipf"], "without the trace"


@pytest.mark.parametrize("name", ["popularity", "ranks"])
def test_examples(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"loadtest.papers.caraserve.{name}"))
    assert results.attempted and not results.failed


needs_traces = pytest.mark.skipif(
    not (TRACE.is_file() and placing.LENGTHS.is_file()), reason="../shared/traces: not here"
)


@needs_traces
def test_turns_meet_their_targets_where_ranks_count() -> None:
    """At a load at which those placed by numbers of turns alone miss some."""
    shares = {
        policy: placing.attained("BGMV", policy, rate=2.0, seconds=15.0)[0]
        for policy in ("cost", "rank-aware", "most-idle")
    }
    assert shares["cost"] > 0.99 and shares["rank-aware"] > 0.99
    assert shares["most-idle"] < min(shares["cost"], shares["rank-aware"])


@pytest.mark.parametrize("key", ["3-left", "14", "19", "20"])
def test_missing_traces_are_named(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (growing, placing):
        monkeypatch.setattr(module, "TRACE", tmp_path / "none")
    results = BY_KEY[key].measure(Alone(), TINY)
    (row,) = BY_KEY[key].rows(results)
    assert row.how == "not measured" and "none" in row.what


def test_ours_are_compared_with_the_best_of_the_others() -> None:
    run = {"steps_longer": 0.01, "steps_longer_p99": 0.1, "num_failed": 0, "num_moved": 1}
    simulated = {"attained": 0.9, "token_ms": 33.0}
    shares = {"cost": 0.86, "rank-aware": 0.84, "most-idle": 0.85, "first-fit": 0.0}
    policies = {
        policy: {**run, "attained": share, "token_ms": 40 - share, "simulated": simulated}
        for policy, share in shares.items()
    }
    recorded_run = RESULTS[BY_KEY["20"].measure]
    rows = BY_KEY["20"].rows(recorded_run | {"policies": policies})
    marks = {row.what: row.mark for row in rows if row.mark}
    assert marks == {
        "cost: targets met, % (simulated)": "met",
        "cost: time per token, ms (simulated)": "met",
        "rank-aware: targets met, % (simulated)": "**missed**",
        "rank-aware: time per token, ms (simulated)": "**missed**",
    }
    assert rows[0].ours == "86.0 (90.0)" and rows[-1].ours == "0, 4"
