"""What the tests of adapters share: a card, adapters on disk, and an image read back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.adapters import Recipe, modules_of, write_adapter
from shared.adapters.layout import SAME_LAYER, ImageLayout, Tile
from shared.wire.messages import LoraCard, LoraTarget

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def small_card(dtype: str = "float32", num_layers: int = 3) -> LoraCard:
    return LoraCard(
        layers_path="model.layers",
        num_layers=num_layers,
        element_bytes=ELEMENT_BYTES[dtype],
        dtype=dtype,
        page_bytes=2048,
        targets=[
            LoraTarget(name="self_attn.q_proj", num_in=24, num_out=40),
            LoraTarget(name="mlp.down_proj", num_in=96, num_out=24),
        ],
        outer=[LoraTarget(name="lm_head", num_in=24, num_out=200)],
    )


def small_adapter(folder: Path, card: LoraCard, **options: Any) -> Path:
    return write_adapter(folder, modules_of(card), Recipe(**options))


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def to_float32(pages: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Values of the model's dtype."""
    if dtype == "bfloat16":
        wide: NDArray[Any] = pages.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    return pages.view(dtype).astype(np.float32)


def unpack(
    image: NDArray[np.uint8],
    card: LoraCard,
    layout: ImageLayout,
    layer: int,
    number: int,
    dtype: str = "float32",
) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """A ``[rank, in]``, B ``[out, rank]`` and scale of one target, rank filled up to fours."""
    each = layout.targets[number]
    a = _gather(image, each.a, (each.rank, each.target.num_in), layer, dtype)
    b = _gather(image, each.b, (each.rank, each.target.num_out), layer, dtype)
    asked = each.a[0].layer if each.a and each.a[0].layer != SAME_LAYER else layer
    scales = image[asked, 0, : 4 * len(layout.targets)].view(np.float32)
    return a, b.T, float(scales[number])


def _gather(
    image: NDArray[np.uint8],
    tiles: tuple[Tile, ...],
    shape: tuple[int, int],
    layer: int,
    dtype: str,
) -> NDArray[np.float32]:
    found = np.full(shape, np.nan, np.float32)
    for tile in tiles:
        page = image[layer if tile.layer == SAME_LAYER else tile.layer, tile.block]
        end = tile.offset + tile.num_rows * tile.num_columns
        values = to_float32(page, dtype)[tile.offset : end]
        found[tile.row : tile.row + tile.num_rows, tile.column : tile.column + tile.num_columns] = (
            values.reshape(tile.num_rows, tile.num_columns)
        )
    return found
