"""What is stored on both sides: blocks of random bytes, all layers of each."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.kvstore.core import DiskWrite, PageReads
from services.kvstore.tiers.disk import Disk, stored_bytes
from shared.arena import Bytes, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, root_key

SEED = 1
READS_IN_ORDER = 4  # layers


@dataclass(frozen=True, slots=True)
class Shape:
    """So many pages of this size."""

    num_blocks: int
    num_layers: int
    page_bytes: int

    @property
    def num_pages(self) -> int:
        return self.num_blocks * self.num_layers

    @property
    def num_bytes(self) -> int:
        return self.num_pages * self.page_bytes

    def keys(self) -> list[BlockKey]:
        """Of a session of so many blocks."""
        return chain_keys(root_key("bench", "hosts"), range(self.num_blocks * BLOCK_TOKENS))

    def pages(self) -> Bytes:
        """uint8 [blocks x layers, page_bytes], the same in every process."""
        random = np.random.default_rng(SEED)
        return random.integers(0, 256, (self.num_pages, self.page_bytes), np.uint8)

    def store(self, folder: Path, pages: Bytes) -> Disk:
        """A database that holds them."""
        disk = Disk(folder, self.num_blocks * stored_bytes(self.num_layers, self.page_bytes))
        for number, key in enumerate(self.keys()):
            at = list(range(number * self.num_layers, (number + 1) * self.num_layers))
            sums = [checksum(pages[page].data) for page in at]
            write = DiskWrite(
                number, key, key, [number] * BLOCK_TOKENS, "bench", self.page_bytes, at, sums
            )
            with disk.write(now_s=0) as writer:
                writer.put(write, pages)
        return disk

    def orders(self) -> list[list[PageReads]]:
        """Of everything, some layers each, into arena pages that follow each other."""
        keys, numbers = self.keys(), list(range(self.num_blocks))
        reads = [
            PageReads(
                layer, self.page_bytes, numbers, keys,
                list(range(layer * self.num_blocks, (layer + 1) * self.num_blocks)),
                [1] * self.num_blocks,
            )
            for layer in range(self.num_layers)
        ]  # fmt: skip
        return [reads[at : at + READS_IN_ORDER] for at in range(0, len(reads), READS_IN_ORDER)]
