"""`symphony bench quantize`, in small: all that it tells, and that it measures what it says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from loadtest.bench import quantize
from loadtest.bench.quantize import rounded_cache, run
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    text = tmp_path / "text.md"
    text.write_text("Once upon a time there was a fox. " * 40)
    options = ["--model", "demo", "--models-dir", str(tmp_path), "--text", str(text)]
    counts = ["--rounds", "1", "--tokens", "136", "--windows", "1", "--prompts", "3"]
    return [*options, *counts, "--history", "70", "--new", "3"]


def test_it_tells_what_int8_costs_and_saves(small: list[str]) -> None:
    found = run(small)["by_dtype"]
    assert set(found) == {"bfloat16", "float32"}
    for dtype, each in found.items():
        element_bytes = 2 if dtype == "bfloat16" else 4
        share = (BLOCK_TOKENS + 4) / BLOCK_TOKENS / element_bytes
        assert each["saved_percent"] == pytest.approx(100 * (1 - share), abs=0.01)
        assert each["stored_page_kb"] == each["page_kb"] * share
        assert each["perplexity_int8"] == pytest.approx(each["perplexity_exact"], rel=0.01)
        assert each["perplexity_int8"] != each["perplexity_exact"]
        assert each["quantize_gb_s"] > 0 and each["dequantize_gb_s"] > 0
        assert 0 <= each["first_difference"] <= 3
    exact = found["float32"]
    assert exact["recomputed_agreement_percent"] == exact["recomputed_identical_percent"] == 100


def test_kv_that_is_wrong_shows(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cache: Any) -> Any:
        made = rounded_cache(cache)
        for layer in made.layers:
            layer.values.neg_()
        return made

    monkeypatch.setattr(quantize, "rounded_cache", broken)
    monkeypatch.setattr(quantize, "WIDTHS", {"float32": 4})
    found = run(small)["by_dtype"]["float32"]
    assert found["agreement_percent"] < 100 and found["first_difference"] < 3
    assert abs(found["perplexity_more_percent"]) > 1


def test_a_rounded_cache_has_each_number_in_its_place() -> None:
    cache, shape = DynamicCache(), (2, 3, 2 * BLOCK_TOKENS, 8)
    for layer in range(2):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    for before, after in zip(cache.layers, rounded_cache(cache).layers, strict=True):
        for old, new in ((before.keys, after.keys), (before.values, after.values)):
            off = (old - new).abs().max().item()
            assert 0 < off < 0.03, "4 / 127 / 2 at most"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--tokens", "127"), ("--tokens", "100000"), ("--history", "63"), ("--prompts", "0")],
)
def test_what_cannot_be_measured_is_refused(small: list[str], option: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--tokens|--prompts|the text has"):
        run([*small, option, value])
