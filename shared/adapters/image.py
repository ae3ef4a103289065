"""An adapter's image, made from its files: how it lies is said in `shared.adapters.layout`.

A scale is not part of B: it is applied in float32 to xA. The header of every layer has those of
all targets there, and of the outer ones; that of a target which a layer does not have is 0.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.adapters.config import AdapterInvalid
from shared.adapters.layout import SAME_LAYER, ImageLayout, Tile
from shared.adapters.source import NO_LIMITS, content_hash, new_digest, open_source
from shared.adapters.tensors import ModuleTensors
from shared.adapters.values import ELEMENTS, Bits, Truncated, convert, read_tensors
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
    """The whole image: ``[num_layers, num_blocks, page_bytes]``.

    Args:
        folder: an adapter that was checked for this card.
        layout: of the adapter's ranks.
        dtype: the model's, in torch's words.
        adapter_hash: that it must have.

    Raises:
        AdapterDamaged: it is not there, or its files are others.
    """
    assert np.dtype(ELEMENTS[dtype]).itemsize == card.element_bytes, (dtype, card.element_bytes)
    image = _Image(card, layout, dtype)
    digests: dict[str, bytes] = {}
    try:
        with open_source(folder, card, NO_LIMITS) as source:
            modules = source.tensors.modules
            image.check(modules)
            places = {each.a.name: (each, False) for each in modules}
            places |= {each.b.name: (each, True) for each in modules}
            entries = [entry for each in modules for entry in (each.a, each.b)]
            for entry, bits in read_tensors(source.weights.fileno(), entries):
                digest = new_digest()
                digest.update(bits.data)
                digests[entry.name] = digest.digest()
                module, is_b = places[entry.name]
                image.put(module, convert(bits, entry.dtype, dtype), is_b=is_b)
            found = content_hash(modules, digests)
    except (AdapterInvalid, Truncated, OSError) as error:
        raise AdapterDamaged(f"adapter {adapter_hash}: {error}") from error
    if found != adapter_hash:
        raise AdapterDamaged(f"adapter {adapter_hash}: its files have the hash {found}")
    return image.pages


class _Image:
    """Pages, zero where nothing was put."""

    def __init__(self, card: LoraCard, layout: ImageLayout, dtype: str) -> None:
        self.pages: Pages = np.zeros(
            (card.num_layers, layout.num_blocks, card.page_bytes), np.uint8
        )
        whole = card.page_bytes // card.element_bytes * card.element_bytes
        self._elements: Bits = self.pages[..., :whole].view(ELEMENTS[dtype])
        header = self.pages[:, 0, : 4 * len(layout.targets)]
        self._scales: NDArray[np.float32] = header.view(np.float32)
        self._layout = layout

    def check(self, modules: Iterable[ModuleTensors]) -> None:
        """See that there is room for these.

        Raises:
            AdapterInvalid: one has a larger rank.
        """
        for each in modules:
            if each.rank > self._layout.targets[each.number].rank:
                raise AdapterInvalid(each.name, f"rank {each.rank} is none of its image's")

    def put(self, module: ModuleTensors, bits: Bits, *, is_b: bool) -> None:
        """Write one of a module's two matrices, as it is in the file, and its scale."""
        tiles = self._layout.targets[module.number]
        if module.layer == SAME_LAYER:
            self._scales[:, module.number] = module.scale
        else:
            self._scales[module.layer, module.number] = module.scale
        rows = bits.T if is_b else bits
        for tile in tiles.b if is_b else tiles.a:
            self._write(tile, module.layer if tile.layer == SAME_LAYER else tile.layer, rows)

    def _write(self, tile: Tile, layer: int, rows: Bits) -> None:
        """The rows of the matrix that are in this tile. Those that it lacks stay zero."""
        part = rows[tile.row : tile.row + tile.num_rows]
        part = part[:, tile.column : tile.column + tile.num_columns]
        size = len(part) * tile.num_columns
        place = self._elements[layer, tile.block, tile.offset : tile.offset + size]
        place.reshape(part.shape)[:] = part
