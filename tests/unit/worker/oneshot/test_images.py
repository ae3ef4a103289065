"""Pixels are what the model's own processor makes of them, or the model is refused."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoImageProcessor

from services.worker.oneshot.inputs import load_image_inputs
from shared.errors import ConfigError
from tests.unit.worker.oneshot.models import write_json

SQUARE = {"height": 20, "width": 20}
PIXELS = np.random.default_rng(5).integers(0, 256, (20, 20, 3), np.uint8)
STATISTICS = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3]}
EFFICIENT = {"size": SQUARE, **STATISTICS}


def ours(folder: Path) -> torch.Tensor:
    inputs = load_image_inputs(str(folder), torch.float32)
    return inputs.batch([PIXELS], 0, torch.device("cpu"))["pixel_values"]


def check(theirs: Any, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = theirs(PIXELS, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours(folder), want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ViTImageProcessorPil", {"size": SQUARE, **STATISTICS}),
        ("ViTImageProcessorPil", {"size": SQUARE, **STATISTICS, "do_rescale": False}),
        ("MobileViTImageProcessorPil", {"size": {"shortest_edge": 20}, "crop_size": SQUARE}),
        (
            "MobileViTImageProcessorPil",
            {"size": {"shortest_edge": 20}, "crop_size": SQUARE, "do_flip_channel_order": False},
        ),
        ("EfficientNetImageProcessorPil", EFFICIENT),
        ("EfficientNetImageProcessorPil", {**EFFICIENT, "include_top": False}),
        ("EfficientNetImageProcessorPil", {**EFFICIENT, "rescale_offset": True}),
        ("EfficientNetImageProcessorPil", {**EFFICIENT, "do_normalize": False}),
    ],
)
def test_pixels_are_those_of_the_models_own_processor(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = getattr(transformers, kind)(**options)
        theirs.save_pretrained(tmp_path)
    check(theirs, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"feature_extractor_type": "MobileViTFeatureExtractor", "size": 20, "crop_size": 20},
        {"image_processor_type": "EfficientNetImageProcessor", **EFFICIENT},
        {"image_processor_type": "EfficientNetImageProcessorFast", **EFFICIENT},
    ],
)
def test_what_a_file_leaves_out_is_the_processors_own_default(
    config: dict[str, Any], tmp_path: Path
) -> None:
    write_json(tmp_path / "preprocessor_config.json", {"do_center_crop": False, **config})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoImageProcessor.from_pretrained(tmp_path)
    theirs.do_resize = False
    check(theirs, tmp_path)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"image_processor_type": "LevitImageProcessor"}, "LevitImageProcessor"),
        ({"feature_extractor_type": "LevitFeatureExtractor"}, "LevitFeatureExtractor"),
        ({"image_processor_type": "PerceiverImageProcessorFast"}, "PerceiverImageProcessor"),
        ({"image_processor_type": "X", "do_flip_channel_order": True}, "do_flip_channel_order"),
        ({"image_processor_type": "X", "include_top": True}, "include_top"),
        ({"image_processor_type": "X", "rescale_offset": True}, "rescale_offset"),
    ],
)
def test_what_is_not_known_is_refused(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    write_json(tmp_path / "preprocessor_config.json", {"size": SQUARE, **config})
    with pytest.raises(ConfigError, match=why):
        load_image_inputs(str(tmp_path), torch.float32)


def test_a_file_that_names_no_processor_is_of_its_models_kind(tmp_path: Path) -> None:
    write_json(tmp_path / "preprocessor_config.json", {"size": SQUARE})
    write_json(tmp_path / "config.json", {"model_type": "levit"})
    with pytest.raises(ConfigError, match="levit"):
        load_image_inputs(str(tmp_path), torch.float32)
