"""What peers report of the blocks that they send, until those can be written to this host's disk.

A peer is believed no more than it must be: a key is the hash of what it names, so parent and tokens
are proven by it, and the disk's writer checks every page against its checksum again.
"""

from dataclasses import dataclass, field

from shared.blocks import BLOCK_TOKENS, NO_PARENT, BlockKey, child_key
from shared.owners import NO_OWNER, OwnerKey


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What came with a page.

    Attributes:
        checksum: of its bytes, which were held against it (xxh3-64).
        owner: the session that made the block.
    """

    parent: BlockKey
    tokens: list[int]
    num_layers: int
    checksum: int
    owner: OwnerKey


@dataclass(slots=True)
class Arrived:
    """A block that comes page by page.

    Attributes:
        fingerprint: of the model that it was asked for.
        tokens, parent, owner: as the first page said that came; none before.
        checksums: by layer.
    """

    fingerprint: str
    tokens: list[int] = field(default_factory=list)
    parent: BlockKey = NO_PARENT
    owner: OwnerKey = NO_OWNER
    checksums: dict[int, int] = field(default_factory=dict)

    def take(self, key: BlockKey, layer: int, facts: PageFacts) -> bool:
        """Take in what came with the page of this layer; False: it cannot be true."""
        if not self.tokens:
            if not 0 < len(facts.tokens) <= BLOCK_TOKENS:
                return False
            if child_key(facts.parent, facts.tokens) != key:
                return False
            self.tokens, self.parent, self.owner = facts.tokens, facts.parent, facts.owner
        self.checksums[layer] = facts.checksum
        return True
