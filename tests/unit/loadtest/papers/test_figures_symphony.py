"""The figures of SYMPHONY, from runs that were made up."""

import doctest
import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from loadtest.bench.figures import DOCS
from loadtest.cluster import run
from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.result import ClusterResult, PrefetchCounts, Spread
from loadtest.papers.base import FULL, QUICK, TINY, Alone, Figure, Results, Row
from loadtest.papers.symphony import SET, data, runs, sweeps
from loadtest.policies.placement import SYSTEMS
from loadtest.workloads.registry import WORKLOADS
from tests.unit.loadtest.papers.figure_views import look, page_with

BY_KEY = {figure.key: figure for figure in SET.figures}
SLOWER = {"cost": 1.0, "recompute": 3.0, "sticky": 2.0, "migrate": 1.5}  # others: 1.2
DRAWN = {"3", "11", "16", "19", "21"}  # stand for all ways in which they are drawn
MADE: list[ClusterOptions] = []


def made_up(asked: ClusterOptions) -> ClusterResult:
    """A cluster that gets slower with users, by policy, and by what is switched off."""
    MADE.append(asked)
    slow = SLOWER.get(asked.policy, 1.2) + asked.missed + asked.spurious / 10
    if asked.policy == "cost":
        slow += (len(asked.without) + (asked.eviction != "predicted")) / 2
    tpot = Spread(*[slow * (10 + asked.users / 100)] * 4)
    return ClusterResult(
        turns=10,
        failed=0,
        unfinished=0,
        ttft_ms=tpot,
        tpot_ms=tpot,
        normalized_ms=tpot,
        by_priority={"urgent": {"tpot_ms": tpot, "ttft_ms": tpot}, "other": {"tpot_ms": tpot}},
        requests_per_s=asked.users / slow,
        tokens_per_s=1.0,
        load_max_over_median=slow,
        recomputed_tokens=5,
        history_tokens=20,
        return_ttft_ms=tpot,
        prompt_tokens=20,
        prefetch=PrefetchCounts(1, 2, 3, 4),
        loaded_tokens={"arena": 5},
        workflow_s=[slow, 3 * slow],
    )


@pytest.fixture(autouse=True)
def no_clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run, "run_cluster", made_up)
    monkeypatch.setattr(runs, "why_absent", lambda name: "")
    MADE.clear()
    runs._KNOWN.clear()
    yield
    runs._KNOWN.clear()


def measured(key: str) -> Results:
    return BY_KEY[key].measure(Alone(), TINY)


def rows_of(key: str) -> dict[str, Row]:
    return {row.what: row for row in BY_KEY[key].rows(measured(key))}


@pytest.mark.parametrize("figure", SET.figures, ids=lambda figure: figure.key)
def test_figure(figure: Figure) -> None:
    results = figure.measure(Alone(), TINY)
    if figure.key in DRAWN | {"4", "20"}:
        look(figure, results)
    rows = figure.rows(results)
    if "skipped" in results:
        pytest.skip(results["skipped"])
    assert all(row.ours and row.how.startswith("simulated: ") for row in rows)
    assert not any("|" in "".join(row) for row in rows)
    assert len({row.what for row in rows}) == len(rows) > 0


def test_all_that_the_paper_measured_are_here() -> None:
    expected = [*range(1, 7), *range(11, 22)]
    own = {"70b", "loads"}
    assert [key for key in BY_KEY if key not in own] == [*map(str, expected)]


def test_the_page_shows_figures_as_they_are_now() -> None:
    kept = orjson.loads((DOCS / "figures" / "symphony.json").read_bytes())
    assert kept.keys() == BY_KEY.keys()
    page = (DOCS / "symphony-figures.md").read_text()
    for figure in (BY_KEY[key] for key in kept):
        assert f"\n## {figure.title}\n\n{figure.about}\n" in page
        assert (DOCS / "figures" / f"symphony-{figure.key}.png").is_file()


def test_a_page_is_written(tmp_path: Path) -> None:
    text, rows = page_with(SET, BY_KEY["19"], measured("19"), tmp_path)
    assert "6 (4.5); 14.6 (21.3 to 24.4 ms" in text
    assert rows


def test_every_run_is_done_once_for_all_figures() -> None:
    for figure in SET.figures:
        if figure.measure is not data.measure:
            figure.measure(Alone(), QUICK)
    assert len(MADE) == len(set(MADE)) > 40


def test_runs_are_of_what_there_is() -> None:
    for effort in (QUICK, FULL):
        for figure in SET.figures:
            if figure.measure is not data.measure:
                figure.measure(Alone(), effort)
    assert {asked.trace for asked in MADE} <= set(WORKLOADS)
    assert {asked.policy for asked in MADE} <= set(SYSTEMS)
    assert {asked.gpus // asked.gpus_per_host for asked in MADE} == {2}
    assert {asked.gpus * asked.gpus_per_worker for asked in MADE} == {4, 8}
    of_hosts = {asked.host_share: asked.gpus_per_host for asked in MADE if asked.gpus > 2}
    assert of_hosts == {0.5: 2, 1.0: 4}


def test_users_are_scaled_with_the_cluster() -> None:
    assert runs.options(QUICK, users=1024).users == 512
    assert runs.options(FULL, users=1024).users == 1024
    assert runs.options(QUICK, users=1).users == 1
    assert runs.options(FULL, users=96, workers=2, gpus_per_worker=4).users == 96


def test_how_many_times_better() -> None:
    rows = rows_of("11")
    assert rows["TPOT: how many times better than sticky (InferCept)"].ours == "2.00"
    requests = rows["requests a second: how many times better than sticky (InferCept)"]
    assert (requests.paper, requests.ours) == ("4.2 at 1,024 users", "2.00")


def test_users_at_like_tpot_quotes_all_that_the_paper_says() -> None:
    results = sweeps.sweep(Alone(), FULL, ["symphony", "recompute"], [64, 512, 1024])
    assert sweeps.users_at(results, "symphony", 15.12) == pytest.approx(512)
    assert sweeps.users_at(results, "symphony", 1.0) == 0
    (row,) = [row for what, row in rows_of("11").items() if what.startswith("users at a TPOT")]
    assert "64 to 256" in row.paper
    assert "8 (64 to 512" in row.paper
    assert "1.3%" in row.paper
    assert row.ours.startswith("at least 1.0 ")  # one number of users was run


def test_what_missed_and_spurious_hints_cost() -> None:
    missed = rows_of("19")["10% of hints missed: ms a token, all of a turn, worse by, %"]
    assert missed.ours.startswith("10.0 ")
    assert missed.mark == "met"
    spurious = rows_of("20")["60% spurious hints: requests a second, worse by, %"]
    assert spurious.ours.startswith("5.7 ")
    assert (spurious.paper, spurious.mark) == ("2.1", "**missed**")


def test_a_row_is_not_met_by_a_load_that_does_not_touch_its_mechanism(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of the history is still in GPUs' pools."""

    def idle(asked: ClusterOptions) -> ClusterResult:
        return replace(made_up(asked), recomputed_tokens=0, loaded_tokens={})

    monkeypatch.setattr(run, "run_cluster", idle)
    for key in ("11", "14", "16", "17", "18", "19", "20", "21"):
        rows = BY_KEY[key].rows(measured(key))
        assert {row.mark for row in rows} - {""} == {"not exercised"}, key
        if key not in {"16", "21"}:
            assert rows[0].ours.endswith("the load does not touch it")


def test_without_a_part() -> None:
    rows = rows_of("17")
    cooperative = rows["TPOT without cooperative over TPOT with it"]
    assert (cooperative.ours, cooperative.mark) == ("1.500", "**missed**")
    priority = rows["requests a second without priority over requests a second with it"]
    assert (priority.paper, priority.mark) == ("throughput -21.7%", "met")


def test_vllm_keeps_nothing_as_the_papers_did() -> None:
    measured("6")
    of_vllm = [asked for asked in MADE if asked.policy == "recompute"]
    assert all(asked.without == {"prefix-cache"} for asked in of_vllm)
    assert of_vllm


@pytest.mark.parametrize("figure", SET.figures, ids=lambda figure: figure.key)
def test_what_is_not_here_is_told(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    absent: Callable[[str], str] = lambda name: f"no {name}"  # noqa: E731
    monkeypatch.setattr(runs, "why_absent", absent)
    monkeypatch.setattr(data, "why_absent", absent)
    results = figure.measure(Alone(), TINY)
    if figure.key in DRAWN:
        figure.draw(results)
    rows = figure.rows(results)
    if figure.key in {"2", "4"}:  # by the profile alone
        assert all(row.ours for row in rows)
    else:
        assert [row.how for row in rows] == ["not measured"]
    assert MADE == []


@pytest.mark.parametrize("name", ["sweeps", "data", "evidence"])
def test_examples(name: str) -> None:
    module = importlib.import_module(f"loadtest.papers.symphony.{name}")
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_options_are_told_apart() -> None:
    """A run is known by all of its options."""
    first = runs.options(TINY)
    runs.run_all(Alone(), [first, first, replace(first, seed=2)])
    assert [first, replace(first, seed=2)] == MADE
