"""In which size a model takes its images; against the models' own processors: `test_inputs`."""

from typing import Any

import pytest

from shared.image_size import ImageSize, image_size

CROP = {"do_center_crop": True, "crop_size": 32}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"size": 32}, ImageSize(32, 32, (32, 32))),
        ({"size": {"height": 16, "width": 24}}, ImageSize(16, 24, (16, 24))),
        ({"size": 224, "crop_pct": 0.875}, ImageSize(224, 224, 256)),
        ({"size": 384, "crop_pct": 0.875}, ImageSize(384, 384, (384, 384))),
        ({"size": 40, **CROP}, ImageSize(32, 32, 40)),
        ({"size": 40, **CROP, "do_center_crop": False}, ImageSize(40, 40, (40, 40))),
        ({"size": 40, **CROP, "feature_extractor_type": "DeiTX"}, ImageSize(32, 32, (40, 40))),
        ({"size": {"shortest_edge": 40}}, ImageSize(40, 40, 40)),
        ({"size": {"shortest_edge": 40}, **CROP}, ImageSize(32, 32, 40)),
        ({"size": {"height": 50, "width": 60}, **CROP}, ImageSize(32, 32, (50, 60))),
        (
            {"size": 40, "do_center_crop": True, "crop_size": {"height": 20, "width": 30}},
            ImageSize(20, 30, 40),
        ),
    ],
)
def test_spellings(config: dict[str, Any], expected: ImageSize) -> None:
    assert image_size(config) == expected


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"size": {}},
        {"size": {"longest_edge": 9}},
        {"size": {"height": 9}},
        {"do_center_crop": True, "crop_size": 32},
        {"size": 40, "do_center_crop": True, "crop_size": {"height": 9}},
    ],
)
def test_no_size(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="names no size"):
        image_size(config)
