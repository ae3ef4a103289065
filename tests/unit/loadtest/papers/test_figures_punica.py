"""The figures of Punica, drawn from recorded results."""

import doctest
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.bench.lora.generation import Generation, GenerationPlan, make_requests
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.papers.base import TINY, Alone, Figure
from loadtest.papers.punica import SET, batching, cluster, layer, profiles
from loadtest.papers.real import native_dtype
from loadtest.workloads.traces import path_of
from tests.unit.loadtest.papers.figure_views import look, page_with, recorded, without_steps

RESULTS = recorded(SET)
BY_KEY = {figure.key: figure for figure in SET.figures}
PLAN = GenerationPlan(num_requests=7, batch=2, prompt=5, said=4, enough_s=9.0)


def rows_of(key: str) -> dict[str, tuple[str, str]]:
    """The paper's and our numbers, by what they are of."""
    figure = BY_KEY[key]
    return {row.what: (row.paper, row.ours) for row in figure.rows(RESULTS[figure.measure])}


def test_all_figures_that_can_be_drawn_are_there() -> None:
    assert list(BY_KEY) == ["1", "7", "8", "9", "10", "11", "12", "13"]


@pytest.mark.parametrize("figure", SET.figures, ids=lambda figure: figure.key)
def test_every_figure_is_drawn_and_says_how_it_was_come_to(figure: Figure) -> None:
    look(figure, RESULTS[figure.measure])


def test_a_layer_is_measured_with_adapters_of_every_popularity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = without_steps(layer, monkeypatch)
    results = BY_KEY["10"].measure(Alone(), TINY)
    look(BY_KEY["10"], results)
    assert results["dtype"] == native_dtype()
    (steps,) = made
    assert list(steps.ranks) == [16, 16, 16]
    assert {context for _, context, _ in steps.asked} == {64}
    last = results["cells"][-1]
    assert last["batch"] == 3
    # A millisecond a row, and one for each adapter; the base is one as well.
    assert last["ms"] == {"base": 4, "distinct": 6, "uniform": 5, "skewed": 6, "identical": 4}


def test_prefills_compute_all_of_their_tokens_and_decodes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (figure, made) = (BY_KEY["1"], without_steps(batching, monkeypatch))
    results = figure.measure(Alone(), TINY)
    look(figure, results)
    for point in results["points"]:
        new = point["context"] if point["stage"] == "prefill" else 1
        assert ([-1] * point["batch"], point["context"], new) in made[0].asked
    prefills = [point for point in results["points"] if point["stage"] == "prefill"]
    assert max(point["context"] * point["batch"] for point in prefills) == 128, "short enough"
    assert len(results["points"]) == 4 + 3


def test_the_page_says_what_is_left_out_and_on_what_rows_were_measured(tmp_path: Path) -> None:
    results = RESULTS[BY_KEY["1"].measure]
    text, rows = page_with(SET, BY_KEY["1"], results, tmp_path)
    assert "Left out: Figures 2 to 6" in text
    assert f"Real: {results['machine']}, " in text
    assert all(f"| {row.what} | {row.paper} | {row.ours} |" in text for row in rows if row.paper)


def test_rows_hold_the_papers_numbers_beside_ours() -> None:
    assert rows_of("8")["4096 wide, distinct, sgmv, batch 1 to 3, us"][0] == "37 to 116"
    assert rows_of("8")["768 wide, distinct, sgmv, batch 1 to 3, us"][0] == ""
    assert rows_of("9")["4096 wide, distinct, rank 16, batch 1 to 3, us"][0] == "about 42 to 75"
    figure = RESULTS[BY_KEY["10"].measure]["cells"]
    before, after = figure[0]["ms"]["distinct"], figure[-1]["ms"]["distinct"]
    paper, ours = rows_of("10")["7B, context of 512, distinct, batch 1 to 3, ms"]
    assert paper == "+72%"
    assert ours == f"{before:.1f} to {after:.1f} ({100 * (after / before - 1):+.0f}%)"
    of_vllm = {"base": 90.0, "distinct": 40.0, "uniform": 50.0, "skewed": 60.0, "identical": 70.0}
    results = RESULTS[BY_KEY["11"].measure]
    rows = {row.what: row.ours for row in BY_KEY["11"].rows(results | {"vllm": of_vllm})}
    assert rows["vLLM, no adapters, tokens/s"] == "90.0"
    assert rows["distinct, vLLM, tokens/s"] == "40.0"
    rows = {row.what: row.ours for row in BY_KEY["11"].rows(results | {"vllm": {}})}
    assert rows["vLLM, no adapters, tokens/s"] == "" and "distinct, vLLM, tokens/s" not in rows


def test_distinct_adapters_do_not_change_the_intensity() -> None:
    for name in POPULARITIES:
        paper, ours = rows_of("7")[f"4096 wide, {name}, batch 1 to 3, FLOP/byte"]
        first, last = ours.split(" to ")
        assert (first == last) == (name in {"distinct", "skewed"}), "of three, skewed are distinct"
        assert bool(paper) == (name == "distinct")


@pytest.mark.parametrize("name", ["bench.lora.generation", "papers.real", "papers.punica.roofline"])
def test_examples(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"loadtest.{name}"))
    assert results.attempted and not results.failed


def test_requests_have_the_same_lengths_whatever_is_popular() -> None:
    made = {name: make_requests(PLAN, name, 500) for name in POPULARITIES}
    assert len({tuple(each.counts) for each in made.values()}) == 1
    assert len({tuple(map(len, each.prompts)) for each in made.values()}) == 1
    prompts = [tuple(prompt) for each in made.values() for prompt in each.prompts]
    assert len(set(prompts)) > len(made) * 5, "nobody is to have computed another's prompt"
    assert made["distinct"].on == [0, 1, 0, 1, 0, 1, 0]
    assert set(made["identical"].on) == {0}
    for name in ("uniform", "skewed"):
        counts = [made[name].on.count(number) for number in range(PLAN.num_adapters)]
        assert sorted(filter(None, counts)) == sorted(POPULARITIES[name](7))
        assert made[name].on != sorted(made[name].on), "who is popular comes in between"


class _Peft:
    """Takes a second for each token that a batch says."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def generate_s(self, rows: Sequence[Any], prompts: list[list[int]], count: int) -> float:
        self.batches.append(list(rows))
        return float(count)


def test_peft_goes_batch_by_batch_and_stops_when_it_is_enough() -> None:
    peft, ours = _Peft(), SimpleNamespace(model=SimpleNamespace(vocab_size=500))
    adapters = [f"a{number}" for number in range(PLAN.num_adapters)]
    generation = Generation(ours, peft, adapters, PLAN)  # type: ignore[arg-type]
    counts = make_requests(PLAN, "distinct", 500).counts
    rate = generation.one_adapter("distinct")
    assert peft.batches == [[f"a{n % 2}"] for n in range(len(peft.batches))], "no two share one"
    taken = counts[: len(peft.batches)]
    assert sum(taken) >= PLAN.enough_s > sum(taken[:-1]) and rate == 1.0
    peft.batches.clear()
    rate = generation.mixed("distinct")
    assert peft.batches[0] == ["a0", "a1"]
    pairs = [counts[at : at + 2] for at in range(0, 2 * len(peft.batches), 2)]
    assert rate == sum(map(sum, pairs)) / sum(map(max, pairs)) > 1.0
    peft.batches.clear()
    generation.transformers()
    assert {adapter for batch in peft.batches for adapter in batch} == {None}


needs_lengths = pytest.mark.skipif(
    not path_of(profiles.LENGTHS).is_file(), reason="../shared/traces: not here"
)


@needs_lengths
def test_consolidation_fills_gpus_one_after_the_other() -> None:
    packed, spread = (cluster._run(90.0, policy) for policy in ("consolidate", "most-idle"))
    assert packed["batch"] > 2 * spread["batch"]
    assert packed["mean_over_need"] < 1.5 < spread["mean_over_need"]
    assert packed["num_refused"] == spread["num_refused"] == 0


def test_what_is_simulated_names_traces_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for key in ("12", "13"):
        module = importlib.import_module(BY_KEY[key].measure.__module__)
        monkeypatch.setattr(module, "path_of", lambda name: tmp_path / "none")
        (row,) = BY_KEY[key].rows(BY_KEY[key].measure(Alone(), TINY))
        assert row.how == "not measured" and "none" in row.what


def test_example_of_an_adapter_over_gpus() -> None:
    results = doctest.testmod(profiles)
    assert results.attempted and not results.failed
