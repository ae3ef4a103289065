"""How large adapters, a pool for some of them, and all of them on disk are."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from shared.adapters.layout import image_bytes, layout_image
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest
from shared.messages import LoraCard

KV_DISK_BYTES = 4 << 30  # for turns' KV, beside all images
DISK_OVERHEAD = 1.25  # the kvstore's file may grow a quarter beyond its limit


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes. Of adapters it is the mean of the ranks, which all come equally often.

    Attributes:
        image: in the model's pages.
        source: A and B in the model's dtype, as their files are.
        block: KV of `BLOCK_TOKENS` tokens in all layers.
    """

    image: float
    source: float
    block: int

    def pool_bytes(self, room: int, turns: int, turn_tokens: int) -> int:
        """Of a pool for `room` images beside the KV of so many turns.

        >>> Sizes(1000.5, 0, 10).pool_bytes(room=2, turns=3, turn_tokens=80)
        2061
        """
        blocks = turns * -(-turn_tokens // BLOCK_TOKENS)
        return int(room * self.image) + blocks * self.block

    def kv_disk_bytes(self, num: int) -> int:
        """What a kvstore is allowed that is to keep all images, and KV beside them."""
        return int(num * self.image) + KV_DISK_BYTES

    def check_disk(self, folder: Path, num: int) -> None:
        """See that there is room for the files and images of `num` adapters, and for KV.

        Raises:
            InvalidRequest: there is not; tells how much is needed.
        """
        free = shutil.disk_usage(folder).free
        needed = int(num * self.source + DISK_OVERHEAD * self.kv_disk_bytes(num))
        if free < needed:
            raise InvalidRequest(
                f"--adapters {num}: {folder} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} "
                f"GB may be needed: {num * self.source / 1e9:.1f} for adapters' files, the rest "
                "for images and KV. Use --targets qv, fewer adapters, or another TMPDIR"
            )


def sizes_of(card: LoraCard, targets: Sequence[str], ranks: Sequence[int]) -> Sizes:
    """Of adapters with these targets and one rank each, these in turn.

    Args:
        targets: ends of names; none: every target in the layers.
    """
    ends = tuple(targets) or ("",)
    chosen = [each for each in card.targets if each.name.endswith(ends)]
    images, sources = [], []
    for rank in ranks:
        layout = layout_image(card, {each.name: rank for each in chosen})
        images.append(image_bytes(card, layout))
        numbers = sum(rank * (each.num_in + each.num_out) for each in chosen)
        sources.append(numbers * card.num_layers * card.element_bytes)
    return Sizes(fmean(images), fmean(sources), card.num_layers * card.page_bytes)
