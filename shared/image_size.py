"""The size in which an image model takes its images: the frontend makes them so, the worker expects
them so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SQUEEZING = ("DeiT", "Beit", "EfficientNet")  # for them a bare size is a square, then cropped
CROP_PCT_EDGE = 384  # from this size on, models with `crop_pct` squeeze instead of cropping


@dataclass(frozen=True, slots=True)
class ImageSize:
    """How a model's images come to their one size.

    Attributes:
        height, width: of every image that the model takes.
        resize_to: what an image becomes before its middle is cut out: its shorter edge, or its
            height and width, which may squeeze it.
    """

    height: int
    width: int
    resize_to: int | tuple[int, int]


def image_size(config: Mapping[str, Any]) -> ImageSize:
    """What a model's ``preprocessor_config.json`` asks for, in today's and older spellings.

    A size that leaves images of different shapes (a shortest edge without a crop) is completed with
    a square crop: the inputs of a batch have one shape.

    Raises:
        ValueError: no size is given.

    >>> image_size({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224})
    ImageSize(height=224, width=224, resize_to=256)
    """
    size, crop, crop_pct = _size(config), config.get("crop_size"), config.get("crop_pct")
    cut = _rectangle(crop) if crop and config.get("do_center_crop") else None
    edge = size.get("shortest_edge")
    if edge is not None:
        edge = int(edge)
        if crop_pct is None:
            height, width = cut or (edge, edge)
            return ImageSize(height, width, edge)
        resize_to = (edge, edge) if edge >= CROP_PCT_EDGE else int(edge / crop_pct)
        return ImageSize(edge, edge, resize_to)
    squeezed = _rectangle(size)
    return ImageSize(*(cut or squeezed), resize_to=squeezed)


def _size(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The size before the crop, a bare number spelled out."""
    size = config.get("size")
    if isinstance(size, int):
        kind = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
        has_edge = config.get("crop_pct") is not None or (
            bool(config.get("do_center_crop")) and not kind.startswith(SQUEEZING)
        )
        return {"shortest_edge": size} if has_edge else {"height": size, "width": size}
    return size if isinstance(size, Mapping) else {}


def _rectangle(size: Any) -> tuple[int, int]:
    """Height and width."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and "height" in size and "width" in size:
        return int(size["height"]), int(size["width"])
    raise ValueError("preprocessor_config.json names no size")
