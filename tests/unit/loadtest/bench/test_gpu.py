"""`bench gpu` runs on a tiny shape where there is no GPU, and checks before it measures."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cli.main import app
from kernels.paged_attention import paged_attention
from loadtest.bench import gpu
from loadtest.bench.gpu import checks, models
from loadtest.bench.gpu.models import EIGHT_B, ONE_B, TINY
from loadtest.bench.gpu.table import REFERENCES, bounds, make_table
from services.worker.device.gpu.recordings import Launch

ROOT = Path(__file__).parents[4]
H200 = {"memory_gb_per_s": 4228.0, "matrix_tflops": 683.0, "link_to_device_gb_per_s": 55.0}
ADAPTER_BYTES = 84_000_000


ON_GPU = replace(TINY, hidden=256, head_dim=64, dtype=torch.bfloat16)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_figure_is_there(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(gpu, "bench_device", lambda: torch.device(device))
    monkeypatch.setattr(gpu, "bench_shape", lambda of: TINY if of.type == "cpu" else ON_GPU)
    figures = gpu.run(["--rounds", "1"])
    assert figures["checks"]["tokens_equal"] == 2 * 24
    assert figures["checks"]["recorded_kinds"] == 8
    assert figures["checks"]["recorded_compared"] > 100
    assert {"memory_gb_per_s", "matrix_tflops"} <= figures["ceilings"].keys()
    assert figures["attention"]["prefill_share_of_matrix"] > 0
    assert figures["copies"]["to_device_share_of_link"] > 0
    measured = {row["figure"]: row for row in figures["table"]}
    sizes = dict(zip(("1", "16", "64"), (*TINY.batches, TINY.batches[-1]), strict=True))
    for name in REFERENCES[0].figures:
        kind, _, size = name.rpartition("_")
        own = f"{kind}_{sizes[size]}" if size in sizes and "sgmv" not in kind else name
        assert {"measured", "bound"} <= measured[own].keys(), name
    assert measured["returning_sessions"]["measured"] == TINY.sessions
    assert measured["hinted_cached_share"]["measured"] == 1.0, "all of it was prefetched"


def test_a_wrong_kernel_is_found_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "paged_attention", lambda *given: paged_attention(*given) * 1.001)
    with pytest.raises(AssertionError, match=r"attention in torch.float32 is wrong by 0.001"):
        checks.check_all(torch.device("cpu"))


def test_a_recorded_launch_that_is_wrong_is_all_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stale(launch: Launch) -> Launch:
        kept = launch().clone()
        return lambda: kept

    monkeypatch.setattr(gpu, "bench_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(models, "repeat", stale)
    monkeypatch.setattr(gpu, "check_all", lambda _: {})
    result = CliRunner().invoke(app, ["bench", "gpu", "--json"])
    assert result.exit_code == 1 and result.stdout == ""
    assert "nothing is measured: recorded launches are wrong: a prefill: token" in result.stderr
    assert not {"ceilings", "_per_s", "_ms"} & {*result.stderr.split()}
    assert "gb_per_s" not in result.stderr


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("decode_ms_1", 3.8), ("decode_ms_16", 4.8), ("decode_ms_64", 7.8),
        ("tokens_per_s_64", 8200), ("first_short_ms", 4), ("prompt_ms", 92),
        ("prompts_tokens_per_s", 44_000), ("adapters_ms_1", 3.9), ("adapters_ms_64", 8.5),
        ("one_adapter_ms_16", 4.9), ("first_turns_s", 7.0), ("first_cached_ms_64", 22),
    ],
)  # fmt: skip
def test_bounds_of_an_h200(name: str, bound: float) -> None:
    assert bounds(EIGHT_B, H200, ADAPTER_BYTES, 30)[name] == pytest.approx(bound, rel=0.25)


@pytest.mark.parametrize(("column", "place"), [("vLLM", 0), ("aim", 1)])
def test_the_page_has_the_figures_that_the_benchmark_shows(column: str, place: int) -> None:
    _, _, table = (ROOT / "docs/gpu.md").read_text().partition("## Figures")
    head, _, *rows = [line.split("|") for line in table.partition("Parts alone")[0].splitlines()
                      if line.startswith("|")]  # fmt: skip
    at = [cell.strip() for cell in head].index(column)
    shown = {
        float(each) for row in rows for each in re.findall(r"[\d.]+", row[at].replace(",", ""))
    }
    assert shown == {each[place] for each in REFERENCES[0].figures.values()} - {None}


def test_other_figures_stand_beside_those_of_their_card_alone() -> None:
    figures = {"decode_ms_1": 4.7, "tokens_per_s_64": 7000.0, "first_short_ms": 8.0}
    bound = bounds(EIGHT_B, H200, ADAPTER_BYTES, 30)
    rows = make_table("NVIDIA H200", EIGHT_B, figures, bound)
    assert [row["met"] for row in rows] == [False, True, True]
    assert rows[0]["vllm"] == 4.92 and rows[2]["vllm"] is None
    for card, shape in (("NVIDIA H100", EIGHT_B), ("NVIDIA H200", ONE_B)):
        assert "vllm" not in make_table(card, shape, figures, bound)[0]
