"""The model zoo's figures, and what SYMPHONY_EMULATE can name."""

import csv
from pathlib import Path
from typing import get_args

import pytest

from shared.errors import ConfigError
from shared.zoo import Device, ZooModel, parse_emulation, subset, zoo, zoo_model

DATA = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.parametrize("device", get_args(Device))
def test_the_tables_are_the_data_files(device: Device) -> None:
    path = DATA / f"model_zoo_{device}.csv"
    if not path.is_file():
        pytest.skip("the data files are not beside this checkout")
    with path.open() as file:
        rows = [
            ZooModel(r["model"], float(r["alpha_ms"]), float(r["beta_ms"]), float(r["slo_ms"]))
            for r in csv.DictReader(file)
        ]
    assert zoo(device) == rows


@pytest.mark.parametrize(("device", "num_models"), [("1080ti", 35), ("a100", 37)])
def test_every_model_makes_batches_of_4_within_its_target(device: Device, num_models: int) -> None:
    models = zoo(device)
    assert len(models) == num_models == len({model.name for model in models})
    assert all(2 * model.batch_ms(4) <= model.slo_ms + 1.0 for model in models if model.slo_ms > 20)
    assert all(model.size_within(model.slo_ms) >= 4 for model in models)


def test_subsets_split_the_zoo() -> None:
    models = zoo("1080ti")
    strong, weak = subset(models, "strong"), subset(models, "weak")
    assert subset(models, "mixed") == models == strong + weak
    assert (strong[-1].name, weak[0].name) == ("VGG16", "EfficientNetB2")


def test_the_largest_size_within_a_time() -> None:
    model = ZooModel("m", 2.0, 5.0, 20.0)
    assert [model.size_within(ms) for ms in (6.9, 7.0, 8.9, 9.0, 1.0)] == [0, 1, 1, 2, 0]


def test_what_to_emulate() -> None:
    both = parse_emulation("zero, zoo-1080ti:ResNet50,linear:mine:1.5:4:30")
    assert [profile.name for profile in both.generative] == ["zero"]
    assert both.oneshot == (zoo_model("1080ti", "ResNet50"), ZooModel("mine", 1.5, 4.0, 30.0))
    assert parse_emulation("zoo-a100").oneshot == tuple(zoo("a100"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no profile"),
        (",", "names no profile"),
        ("zoo-h100", "zoo-1080ti, zoo-a100"),
        ("zoo-a100:VGG99", "VGG16"),
        ("zoo-a100:BERT,zoo-1080ti:BERT", "names twice: BERT"),
        ("linear:m:1:2", "of the form"),
        ("linear::1:2:3", "of the form"),
        ("linear:m:1:x:3", "numbers"),
        ("linear:m:0:2:3", "above 0"),
        ("linear:m:1:2:inf", "above 0"),
        ("warp-drive", "one-shot models"),
    ],
)
def test_what_is_none_of_these_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_emulation(text)
