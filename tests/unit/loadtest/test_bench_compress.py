"""`symphony bench compress`, in small: all that it tells."""

from pathlib import Path

import pytest

from loadtest.bench.compress import run
from shared.errors import InvalidRequest


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    text = tmp_path / "text.md"
    text.write_text("Once upon a time there was a fox. " * 40)
    return ["--model", "demo", "--models-dir", str(tmp_path), "--text", str(text), "--rounds", "1"]


def test_it_packs_a_model_s_kv_of_both_kinds(small: list[str]) -> None:
    found = run([*small, "--tokens", "150"])["by_dtype"]
    assert set(found) == {"bfloat16", "float32"}
    assert found["float32"]["page_kb"] == 2 * found["bfloat16"]["page_kb"]
    for each in found.values():
        assert each["num_pages"] % 2 == 0, "two whole blocks in each layer"
        plain, shuffled = each["plain"], each["shuffled"]
        assert shuffled["ratio"] > plain["ratio"] > 0.99
        for way in (plain, shuffled):
            most = max(1 - 1 / way["ratio"], 0) * way["decompress_gb_s"]
            assert way["read_pays_below_gb_s"] == pytest.approx(most, rel=0.1, abs=0.02)


@pytest.mark.parametrize("tokens", ["63", "100000"])
def test_what_cannot_be_measured_is_refused(small: list[str], tokens: str) -> None:
    with pytest.raises(InvalidRequest, match="--tokens"):
        run([*small, "--tokens", tokens])
