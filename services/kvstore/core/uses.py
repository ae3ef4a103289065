"""Use of blocks: by stages, and by turns that ran on what pools had, which workers report."""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence

from services.kvstore.core.base.effects import Effect, TouchBlocks
from services.kvstore.core.parts import Parts
from shared.blocks import BlockKey
from shared.expiry import NS_PER_S

BLOCKS_MAX = 512  # of reported sequences, in a step; the last may be longer: some 20 us each
WAITING_MAX = 2048  # reported sequences; of more, the latest: 256 of each of eight workers


class Uses:
    """A step takes a bounded number of reported blocks; what is left is for the next one."""

    def __init__(self, parts: Parts) -> None:
        self._noted_ns = parts.limits.noted_ns
        self._learns = parts.limits.eviction == "predicted"
        self._arenas = parts.arenas
        self._blocks = parts.blocks
        self._tiers = parts.tiers
        self._objects = parts.objects
        self._storing = parts.storing
        self._returns = parts.returns
        self._steps = parts.steps
        # Page size and last block of each, in the order of use.
        self._waiting: OrderedDict[tuple[int, BlockKey], None] = OrderedDict()

    def use(self, keys: list[BlockKey], now_ns: int, effects: list[Effect]) -> None:
        """Blocks were used; the one to evict first comes first."""
        stale: dict[int, list[BlockKey]] = defaultdict(list)  # by their expiry, seconds
        for key in self._blocks.use(keys, now_ns, self._noted_ns):
            if (block := self._blocks.disk.get(key)) is not None:
                stale[block.expiry_ns // NS_PER_S].append(key)
        effects += [TouchBlocks(keys, expiry_s) for expiry_s, keys in stale.items()]

    def report(self, page_bytes: int, lasts: Sequence[BlockKey]) -> None:
        """Turns ran on the sequences that end with these, the one used last last."""
        for key in lasts:
            self._waiting[page_bytes, key] = None
            self._waiting.move_to_end((page_bytes, key))
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popitem(last=False)

    def step(self, now_ns: int, effects: list[Effect]) -> None:
        """Take some of what was reported."""
        num_blocks = 0
        while self._waiting and num_blocks < BLOCKS_MAX:
            (page_bytes, last), _ = self._waiting.popitem(last=False)
            sequence = self._tiers.use(last, page_bytes, now_ns, effects)
            num_blocks += 1 + len(sequence)
            if sequence:
                self._use_sequence(sequence, page_bytes, now_ns, effects)
        if self._waiting:
            self._steps.ask(effects)

    def _use_sequence(
        self, sequence: list[BlockKey], page_bytes: int, now_ns: int, effects: list[Effect]
    ) -> None:
        """Args:
        sequence: its last block first.
        """
        arena, keys = self._arenas[page_bytes], sequence[::-1]
        if self._learns:
            kinds = self._returns.grow(keys, now_ns, guards=(arena.guard, self._blocks.disk.guard))
            self._tiers.set_kinds(keys, page_bytes, kinds)
        found = [key for key in sequence if key in self._blocks]
        self.use(found, now_ns, effects)
        if found and (last := self._blocks.get(found[0])) is not None:
            self._objects.on_used(last.owner, now_ns)
        memory = self._blocks.arena_only
        again = [key for key in reversed(found) if key in memory and key in arena.blocks]
        self._storing.write_again(arena, [arena.blocks[key] for key in again], now_ns)
