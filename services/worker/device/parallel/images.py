"""An adapter's image for several ranks: each page is as many slices, one of each rank's image."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.worker.device.base.executor import ModelInfo
from services.worker.device.parallel.split import BY_INPUTS, BY_OUTPUTS, Shard
from shared.adapters.image import build_image
from shared.adapters.layout import SAME_LAYER, ImageLayout, Tile, layout_image
from shared.arena import Bytes
from shared.wire.messages import AdapterRef, LoraCard

Elements = npt.NDArray[Any]  # [num_layers, num_blocks, elements of a page]

_ELEMENTS = {2: np.uint16, 4: np.uint32}


def read_split_image(info: ModelInfo, num_ranks: int, adapter: AdapterRef, folder: Path) -> Bytes:
    """An adapter's image from its files, see `split_image`.

    Raises:
        AdapterDamaged: the files are not those that were taken in.
    """
    card, of_rank = info.lora, info.image_card
    assert card is not None and of_rank is not None, "a turn's adapter was refused"
    layout = layout_image(card, adapter.ranks)
    whole = build_image(folder, card, layout, card.dtype, adapter.adapter_hash)
    return split_image(whole, card, of_rank, adapter.ranks, num_ranks)


def split_image(
    whole: Bytes, card: LoraCard, of_rank: LoraCard, ranks: dict[str, int], num_ranks: int
) -> Bytes:
    """The ranks' images, side by side in each page.

    Args:
        whole: uint8 ``[num_layers, num_blocks, page_bytes]``, laid out by `card`.
        card: of the model, see `whole_card`.
        of_rank: of a rank's part.
        ranks: of the adapter's targets.

    Returns:
        uint8 ``[num_layers, num_blocks, num_ranks * of_rank.page_bytes]``.
    """
    source, target = layout_image(card, ranks), layout_image(of_rank, ranks)
    shape = (of_rank.num_layers, target.num_blocks, of_rank.page_bytes)
    images = [np.zeros(shape, np.uint8) for _ in range(num_ranks)]
    num_scales = 4 * len(source.targets)
    for rank, image in enumerate(images):
        image[:, 0, :num_scales] = whole[:, 0, :num_scales]
        _fill(
            _elements(image, of_rank),
            target,
            _elements(whole, card),
            source,
            Shard(rank, num_ranks),
        )
    return np.concatenate(images, axis=-1)


def _fill(
    image: Elements, layout: ImageLayout, whole: Elements, source: ImageLayout, shard: Shard
) -> None:
    for ours, theirs in zip(layout.targets, source.targets, strict=True):
        name, width_in, width_out = theirs.target.name, theirs.target.num_in, theirs.target.num_out
        inputs = shard.part(width_in) if name in BY_INPUTS else slice(width_in)
        outputs = shard.part(width_out) if name in BY_OUTPUTS else slice(width_out)
        for to, of, width, part in (
            (ours.a, theirs.a, width_in, inputs),
            (ours.b, theirs.b, width_out, outputs),
        ):
            rows = _read(whole, of, theirs.rank, width)[..., part]
            for tile in to:
                columns = slice(tile.column, tile.column + tile.num_columns)
                _place(image, tile)[:] = rows[:, tile.row : tile.row + tile.num_rows, columns]


def _read(whole: Elements, tiles: tuple[Tile, ...], num_rows: int, width: int) -> Elements:
    """A matrix, of all layers that have one: ``[layers, num_rows, width]``."""
    is_outer = any(tile.layer != SAME_LAYER for tile in tiles)
    rows = np.zeros((1 if is_outer else len(whole), num_rows, width), whole.dtype)
    for tile in tiles:
        columns = slice(tile.column, tile.column + tile.num_columns)
        rows[:, tile.row : tile.row + tile.num_rows, columns] = _place(whole, tile)
    return rows


def _place(image: Elements, tile: Tile) -> Elements:
    """Where a tile lies, ``[layers, num_rows, num_columns]``: a view."""
    layers = slice(None) if tile.layer == SAME_LAYER else slice(tile.layer, tile.layer + 1)
    end = tile.offset + tile.num_rows * tile.num_columns
    place = image[layers, tile.block, tile.offset : end]
    view = place.view()
    view.shape = (len(place), tile.num_rows, tile.num_columns)  # fails where it were a copy
    return view


def _elements(image: Bytes, card: LoraCard) -> Elements:
    whole = card.page_bytes // card.element_bytes * card.element_bytes
    return image[..., :whole].view(_ELEMENTS[card.element_bytes])
