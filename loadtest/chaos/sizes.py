"""How large adapters are in a pool, and a pool for some of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from shared.adapters.layout import image_bytes, layout_image
from shared.blocks import BLOCK_TOKENS
from shared.wire.messages import LoraCard


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes.

    Attributes:
        image: of an adapter in the model's pages, the mean of ranks that all come equally often.
        block: KV of `BLOCK_TOKENS` tokens in all layers.
    """

    image: float
    block: int

    def pool_bytes(self, room: int, turns: int, turn_tokens: int) -> int:
        """Of a pool for `room` images beside the KV of so many turns.

        >>> Sizes(1000.5, 10).pool_bytes(room=2, turns=3, turn_tokens=80)
        2061
        """
        blocks = turns * -(-turn_tokens // BLOCK_TOKENS)
        return int(room * self.image) + blocks * self.block


def sizes_of(card: LoraCard, targets: Sequence[str], ranks: Sequence[int]) -> Sizes:
    """Of adapters with these targets and one rank each, these in turn.

    Args:
        targets: ends of names; none: every target in the layers.
    """
    ends = tuple(targets) or ("",)
    chosen = [each for each in card.targets if each.name.endswith(ends)]
    images = [
        image_bytes(card, layout_image(card, {each.name: rank for each in chosen}))
        for rank in ranks
    ]
    return Sizes(fmean(images), card.num_layers * card.page_bytes)
