"""Where in vLLM's cache the blocks of sessions are, to evict them when a session is deleted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.blocks import BlockKey


@dataclass(slots=True)
class Places:
    """One entry for each block of vLLM's cache, at most. An entry may be of what was in the block
    before: to evict more than was asked for costs a computation, no more.
    """

    _at: dict[int, tuple[BlockKey, str]] = field(default_factory=dict)  # key and owner, by block
    _by_key: dict[BlockKey, int] = field(default_factory=dict)

    def note(self, block: int, key: BlockKey, owner: str) -> None:
        """A block has these tokens; who had it first owns it."""
        old = self._at.get(block)
        if old is not None and old[0] == key:
            return
        if old is not None and self._by_key.get(old[0]) == block:
            del self._by_key[old[0]]
        self._at[block] = key, owner
        self._by_key[key] = block

    def take(self, owner: str, keys: Sequence[BlockKey]) -> set[int]:
        """The blocks of this owner, and of these keys; they are forgotten."""
        found = {block for block, (_, of_owner) in self._at.items() if of_owner == owner}
        found |= {self._by_key[key] for key in keys if key in self._by_key}
        for block in found:
            key, _ = self._at.pop(block)
            if self._by_key.get(key) == block:
                del self._by_key[key]
        return found
