"""An adapter's image, made from its files: how it lies is said in `shared.adapters.layout`.

A scale is not part of B: it is applied in float32 to xA. The header of every layer has those of
all targets there, and of the outer ones; that of a target which a layer does not have is 0.
"""

from collections.abc import Generator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.adapters.config import AdapterInvalid
from shared.adapters.layout import SAME_LAYER, ImageLayout, Tile
from shared.adapters.source import NO_LIMITS, AdapterSource, content_hash, new_digest, open_source
from shared.adapters.tensors import ModuleTensors, TensorEntry
from shared.adapters.values import ELEMENTS, Bits, Truncated, convert, read_tensor
from shared.errors import SymphonyError
from shared.wire.messages.adapters import LoraCard

Pages = NDArray[np.uint8]


class AdapterDamaged(SymphonyError):
    """The files of an adapter are no longer those that were checked."""

    code = "adapter_damaged"
    http_status = 503


def build_image(
    folder: Path, card: LoraCard, layout: ImageLayout, dtype: str, adapter_hash: str
) -> Pages:
    """The whole image: ``[num_layers, num_blocks, page_bytes]``. Arguments and errors are those of
    `image_layers`."""
    image = np.zeros((card.num_layers, layout.num_blocks, card.page_bytes), np.uint8)
    fill_image(image, folder, card, layout, dtype, adapter_hash)
    return image


def fill_image(
    image: Pages, folder: Path, card: LoraCard, layout: ImageLayout, dtype: str, adapter_hash: str
) -> None:
    """Write the image to where the caller wants it, whatever stood there. After an error it is
    worth nothing.

    Args:
        image: ``[num_layers, num_blocks, page_bytes]``, written; each page is contiguous.
    """
    pages = image_layers(folder, card, layout, dtype, adapter_hash)
    for layer, found in zip(image, pages, strict=True):
        layer[:] = found


def image_layers(
    folder: Path, card: LoraCard, layout: ImageLayout, dtype: str, adapter_hash: str
) -> Generator[Pages]:
    """The pages of one layer at a time, layer 0 first: ``[num_blocks, page_bytes]``, the same
    memory every time.

    They are good only if no error comes until the last one was taken: the hash is of all.

    Args:
        folder: an adapter that was checked for this card.
        layout: of the adapter's ranks.
        dtype: the model's, in torch's words.
        adapter_hash: that it must have.

    Raises:
        AdapterDamaged: it is not there, or its files are others.
    """
    assert np.dtype(ELEMENTS[dtype]).itemsize == card.element_bytes, (dtype, card.element_bytes)
    try:
        with open_source(folder, card, NO_LIMITS) as source:
            builder = _Builder(source, card, layout, dtype)
            for layer in range(card.num_layers):
                yield builder.pages_of(layer)
            found = content_hash(source.tensors.modules, builder.digests)
    except (AdapterInvalid, Truncated, OSError) as error:
        raise AdapterDamaged(f"adapter {adapter_hash}: {error}") from error
    if found != adapter_hash:
        raise AdapterDamaged(f"adapter {adapter_hash}: its files have the hash {found}")


class _Builder:
    """Reads each tensor once, and notes its digest."""

    def __init__(
        self, source: AdapterSource, card: LoraCard, layout: ImageLayout, dtype: str
    ) -> None:
        self._source = source
        self._card = card
        self._dtype = dtype
        self._pages: Pages = np.zeros((layout.num_blocks, card.page_bytes), np.uint8)
        whole = card.page_bytes // card.element_bytes * card.element_bytes
        self._elements: Bits = self._pages[:, :whole].view(ELEMENTS[dtype])
        num_targets = len(layout.targets)
        self._scales: NDArray[np.float32] = self._pages[0, : 4 * num_targets].view(np.float32)
        self._layout = layout
        self._inner: dict[int, list[ModuleTensors]] = {}
        self._outer: list[tuple[Tile, Bits]] = []
        self._outer_scales = np.zeros(num_targets, np.float32)
        self.digests: dict[str, bytes] = {}
        for each in source.tensors.modules:
            if each.rank > layout.targets[each.number].rank:
                raise AdapterInvalid(each.name, f"rank {each.rank} is none of its image's")
            if each.layer == SAME_LAYER:
                self._outer += self._placed(each)
                self._outer_scales[each.number] = each.scale
            else:
                self._inner.setdefault(each.layer, []).append(each)

    def pages_of(self, layer: int) -> Pages:
        self._pages[:] = 0
        self._scales[:] = self._outer_scales
        for each in self._inner.get(layer, ()):
            self._scales[each.number] = each.scale
            for tile, rows in self._placed(each):
                self._write(tile, rows)
        for tile, rows in self._outer:
            if tile.layer == layer:
                self._write(tile, rows)
        return self._pages

    def _placed(self, module: ModuleTensors) -> list[tuple[Tile, Bits]]:
        """Each tile of a module, and the matrix that has its rows."""
        tiles = self._layout.targets[module.number]
        a, b = self._read(module.a), self._read(module.b).T
        return [(tile, a) for tile in tiles.a] + [(tile, b) for tile in tiles.b]

    def _read(self, entry: TensorEntry) -> Bits:
        bits = read_tensor(self._source.weights.fileno(), entry)
        digest = new_digest()
        digest.update(bits.data)
        self.digests[entry.name] = digest.digest()
        return convert(bits, entry.dtype, self._dtype)

    def _write(self, tile: Tile, rows: Bits) -> None:
        """The rows of the matrix that are in this tile. Those that it lacks stay zero."""
        part = rows[tile.row : tile.row + tile.num_rows]
        part = part[:, tile.column : tile.column + tile.num_columns]
        size = len(part) * tile.num_columns
        place = self._elements[tile.block, tile.offset : tile.offset + size]
        place.reshape(part.shape)[:] = part
