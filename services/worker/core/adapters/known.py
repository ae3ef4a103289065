"""Which adapters may still be in the pool, in use or not."""

from dataclasses import dataclass, field

from services.worker.core.kv.pages import PagePool
from shared.blocks import BlockKey

KNOWN_MAX = 4096  # adapters that reports may name


@dataclass(slots=True)
class KnownAdapters:
    """Adapters that were here lately, the latest used last, each with its image's last block."""

    _last_blocks: dict[str, BlockKey] = field(default_factory=dict)

    def note(self, adapter_hash: str, last: BlockKey) -> None:
        """An adapter is used."""
        self._last_blocks.pop(adapter_hash, None)
        self._last_blocks[adapter_hash] = last
        if len(self._last_blocks) > KNOWN_MAX:
            del self._last_blocks[next(iter(self._last_blocks))]

    def resident(self, pool: PagePool) -> list[str]:
        """Hashes of the adapters that are here as a whole, the latest used first."""
        here = []
        for adapter_hash, last in reversed(self._last_blocks.items()):
            block = pool.blocks.get(last)
            if block is not None and pool.is_whole(block) and not (block.lost or block.loading):
                here.append(adapter_hash)
        return here
