"""`bench sgmv` refuses wrong kernels, and tells what its cells are."""

import pytest

from kernels.sgmv import add_lora
from loadtest.bench import sgmv
from loadtest.bench.sgmv import agreement
from loadtest.bench.sgmv.popularity import POPULARITIES, skewed
from loadtest.bench.sgmv.step_models import fit_models
from shared.errors import InvalidRequest

SMALL = ["--hidden", "64", "--memory-mb", "64", "--rounds", "2", "--dtype", "fp32"]


def test_every_figure_is_there() -> None:
    few = ["--batch", "1,6", "--ranks", "4,8", "--mixed", "4,16", "--popularity", "distinct,skewed"]
    figures = sgmv.run(SMALL + few)
    assert figures["stream_gb_per_s"] > 0
    assert figures["models"].keys() == {"padded", "unpadded", "distinct"}
    assert len(figures["rows"]) == 3 * 2 * 2
    for row in figures["rows"]:
        assert {"sgmv", "loop", "gather_bmm", "bmm", "padded"} <= row.keys()
        assert row["share_of_bound"] >= 0
    mixed = figures["rows"][-3]
    assert mixed["ranks_of_rows"] == [4, 16, 4, 16, 4, 16]
    assert mixed["adapter_bytes"] == 2 * 64 * 60 * 4


def test_a_wrong_kernel_is_found_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(x: object, y: object, *rest: object) -> None:
        add_lora(x, y, *rest)  # type: ignore[arg-type]
        y *= 1.001  # type: ignore[operator]

    monkeypatch.setattr(agreement, "add_lora", wrong)
    with pytest.raises(AssertionError, match=r"sgmv in torch.float32 is wrong by 0.001"):
        sgmv.run(SMALL)


@pytest.mark.parametrize(
    ("option", "value"), [("--batch", "8,x"), ("--ranks", "0"), ("--popularity", "distinct,rare")]
)
def test_options_that_mean_nothing_are_named(option: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=option):
        sgmv.run([option, value])


@pytest.mark.parametrize("batch", [1, 2, 7, 8, 32, 64])
def test_every_row_has_an_adapter(batch: int) -> None:
    for rows_of in POPULARITIES.values():
        assert sum(rows_of(batch)) == batch and min(rows_of(batch)) > 0
    assert skewed(batch) == sorted(skewed(batch), reverse=True)


def test_the_model_that_is_true_fits_best() -> None:
    rows = []
    for batch, ranks in ((1, [8]), (2, [8, 64]), (4, [8, 8]), (4, [64, 16]), (8, [16] * 8)):
        of_rows = [ranks[row * len(ranks) // batch] for row in range(batch)]
        row = {"batch": batch, "ranks_of_rows": of_rows, "adapter_bytes": 3072 * sum(ranks)}
        rows.append(row | {"sgmv": 0.01 + 1e-7 * row["adapter_bytes"] + 1e-4 * sum(of_rows)})  # type: ignore[operator]
    models = fit_models(rows)
    assert models["distinct"]["r2"] == 1.0
    assert max(models["padded"]["r2"], models["unpadded"]["r2"]) < 0.99
