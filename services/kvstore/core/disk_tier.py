"""Which blocks are on disk, in order of last use."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, KeysView
from dataclasses import dataclass

from shared.blocks import NO_PARENT, BlockKey
from shared.owners import NOBODY, OwnedKeys, OwnerKey

NEVER_NS = -(1 << 62)  # before everything that was ever used


@dataclass(slots=True)
class StoredBlock:
    """A block whose every layer is on disk.

    Attributes:
        num_bytes: what it occupies there, all layers.
        noted_at_ns: last use as written down on disk, at most a while behind `used_at_ns`.
        owner: the session that made it.
        parent: key of the block before it.
    """

    key: BlockKey
    num_layers: int
    page_bytes: int
    num_bytes: int
    used_at_ns: int
    noted_at_ns: int
    owner: OwnerKey = NOBODY
    parent: BlockKey = NO_PARENT


class DiskTier:
    """Blocks on disk, least recently used first. A block is given up only after those that continue
    it: without it, nobody can use them.

    Attributes:
        num_bytes: of all blocks together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[BlockKey, StoredBlock] = OrderedDict()
        self._owned = OwnedKeys()
        self._num_children: Counter[BlockKey] = Counter()  # here, by the key of their parent
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    @property
    def keys(self) -> KeysView[BlockKey]:
        """Of every block here, least recently used first; a view."""
        return self._blocks.keys()

    def get(self, key: BlockKey) -> StoredBlock | None:
        return self._blocks.get(key)

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks here that this session made."""
        return self._owned.of(owner)

    def add(self, block: StoredBlock) -> None:
        """Take in a block that was used later than every block here."""
        assert block.key not in self._blocks, "a block is stored once"
        self._blocks[block.key] = block
        self._owned.add(block.owner, block.key)
        self._num_children[block.parent] += 1
        self.num_bytes += block.num_bytes

    def remove(self, key: BlockKey) -> StoredBlock | None:
        """Forget a block, if it is here."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._owned.remove(block.owner, block.key)
            self._num_children[block.parent] -= 1
            if not self._num_children[block.parent]:
                del self._num_children[block.parent]
            self.num_bytes -= block.num_bytes
        return block

    def clear(self) -> list[BlockKey]:
        """Forget every block; their keys."""
        keys = list(self._blocks)
        self._blocks.clear()
        self._owned.clear()
        self._num_children.clear()
        self.num_bytes = 0
        return keys

    def use(self, keys: Iterable[BlockKey], now_ns: int, stale_ns: int) -> list[BlockKey]:
        """Mark blocks as used, the one to give up first first.

        Returns:
            Those whose last use as written down is more than `stale_ns` behind.
        """
        stale = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                continue
            self._blocks.move_to_end(key)
            block.used_at_ns = now_ns
            if now_ns - block.noted_at_ns > stale_ns:
                block.noted_at_ns = now_ns
                stale.append(key)
        return stale

    def surplus(self, used_before_ns: int, is_busy: Callable[[BlockKey], bool]) -> list[BlockKey]:
        """Blocks to give up, oldest first: those last used before `used_before_ns`, and as many as
        bring the rest under the size limit. Busy ones stay.
        """
        return self._to_give_up(self.num_bytes - self._bytes_max, used_before_ns, is_busy)

    def oldest(self, num_bytes: int, is_busy: Callable[[BlockKey], bool]) -> list[BlockKey]:
        """The least recently used blocks that together occupy at least `num_bytes`."""
        return self._to_give_up(num_bytes, NEVER_NS, is_busy)

    def _to_give_up(
        self, num_bytes: int, used_before_ns: int, is_busy: Callable[[BlockKey], bool]
    ) -> list[BlockKey]:
        out: list[BlockKey] = []
        num_gone: Counter[BlockKey] = Counter()  # children that go, by their parent
        kept: set[BlockKey] = set()  # for their children's sake
        for oldest in self._blocks.values():
            if num_bytes <= 0 and oldest.used_at_ns >= used_before_ns:
                break
            block: StoredBlock | None = oldest
            while block is not None and not is_busy(block.key):
                if num_bytes <= 0 and block.used_at_ns >= used_before_ns:
                    break
                if self._num_children[block.key] > num_gone[block.key]:
                    kept.add(block.key)
                    break
                out.append(block.key)
                num_bytes -= block.num_bytes
                num_gone[block.parent] += 1
                block = self._blocks.get(block.parent) if block.parent in kept else None
        return out
