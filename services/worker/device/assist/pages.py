"""An adapter's pages in the arena, and whether what is in them is what was promised."""

from dataclasses import dataclass, field

import numpy as np

from kernels.sgmv.interface import Site
from services.worker.device.assist.orders import AssistedImage
from shared.adapters.layout import SAME_LAYER, ImageLayout, layout_image
from shared.arena import Arena, Pages, Words, ready_words
from shared.wire.messages import LoraCard


@dataclass(frozen=True, slots=True)
class ArenaPages:
    """Where an image lies.

    Attributes:
        pages: ``[num_layers, num_blocks]``.
        words: ``[num_layers, num_blocks]``, of the arena while it holds the image.
    """

    image: AssistedImage
    pages: Pages
    words: Words
    _layout: ImageLayout
    _places: dict[tuple[int, Site], tuple[Pages, Words]] = field(default_factory=dict)

    @classmethod
    def of(cls, card: LoraCard, image: AssistedImage) -> "ArenaPages":
        """An image's."""
        return cls(
            image,
            np.array(image.pages, np.int64),
            ready_words(image.generations),
            layout_image(card, image.ranks),
        )

    def are_in(self, arena: Arena) -> bool:
        """Whether an arena has pages of these numbers."""
        return bool(self.pages.min() >= 0 and self.pages.max() < arena.num_pages)

    def are_there(self, arena: Arena, layer: int, site: Site) -> bool:
        """Whether all pages that a site's weights in this layer are in hold the promised bytes."""
        known = self._places.get((layer, site))
        if known is None:
            known = self._places[layer, site] = self._find(layer, site)
        return arena.hold(*known)

    def _find(self, layer: int, site: Site) -> tuple[Pages, Words]:
        """Pages that a site's weights in this layer are in, and their words."""
        places = {(layer, 0)}  # the scales
        for number in site.targets:
            of = self._layout.targets[number]
            for tile in (*of.a, *of.b):
                places.add((layer if tile.layer == SAME_LAYER else tile.layer, tile.block))
        layers, blocks = np.array(sorted(places), np.int64).T
        return self.pages[layers, blocks], self.words[layers, blocks]
