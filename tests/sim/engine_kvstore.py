"""A kvstore for the engine's simulation: a dict for an arena, a dict for a disk, and faults."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from services.worker.core.effects import BlockWrite
from services.worker.core.kv.staged import Staged
from shared.blocks import BlockKey
from shared.owners import OwnerKey

Content = tuple[int, BlockKey, tuple[int, ...]]  # layer, parent key, tokens: what a page holds


def content_of(layer: int, parent: BlockKey, tokens: list[int]) -> Content:
    """What a page of these tokens, after `parent`, must hold in `layer`."""
    return layer, parent, tuple(tokens)


@dataclass
class StoredBlock:
    """A block below; `pages` is None while only the disk has it."""

    contents: list[Content]
    pages: list[int] | None
    write: BlockWrite
    is_on_disk: bool = False


@dataclass
class FakeKvstore:
    """Attributes:
    leased: arena pages that the worker may write.
    tickets: pages that each open stage pins.
    leaving: deleted blocks that a stage pins.
    generations: never used twice, whatever restarts.
    ready_at_ns: when the bytes of a page that comes from disk are there.
    doomed: pages whose bytes will never come.
    """

    num_pages: int
    num_layers: int
    random: Random
    disk_ns: int
    doomed_share: float
    arena: dict[int, Content] = field(default_factory=dict)
    free: list[int] = field(init=False)
    leased: set[int] = field(default_factory=set)
    blocks: dict[BlockKey, StoredBlock] = field(default_factory=dict)
    leaving: list[StoredBlock] = field(default_factory=list)
    tickets: dict[int, list[int]] = field(default_factory=dict)
    pins: Counter[int] = field(default_factory=Counter)
    generations: dict[int, int] = field(default_factory=dict)
    ready_at_ns: dict[int, int] = field(default_factory=dict)
    doomed: set[int] = field(default_factory=set)
    _next_generation: int = 1
    _next_ticket: int = 1

    def __post_init__(self) -> None:
        self.free = list(range(self.num_pages))

    def stage(self, keys: list[BlockKey], now_ns: int) -> Staged:
        """Pin the longest stored prefix of `keys`, as far as the arena has room."""
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        pinned = self.tickets[ticket] = []
        found: list[BlockKey] = []
        num_from_disk = 0
        for key in keys:
            block = self.blocks.get(key)
            if block is None:
                break
            if block.pages is None:
                if not self._bring_up(block, now_ns):
                    break
                num_from_disk += self.num_layers
            assert block.pages is not None
            pinned += block.pages
            self.pins.update(block.pages)
            found.append(key)
        pages = [pinned[layer :: self.num_layers] for layer in range(self.num_layers)]
        generations = [[self.generations[page] for page in row] for row in pages]
        return Staged(
            ticket,
            found,
            pages,
            generations,
            num_from_disk,
            ready_in_ns=self._promise(pages, now_ns),
        )

    def _promise(self, pages: list[list[int]], now_ns: int) -> list[int]:
        """When each layer is there, more or less."""
        ready_at_ns = [max((self.ready_at_ns[page] for page in row), default=0) for row in pages]
        if max(ready_at_ns) <= now_ns:
            return []
        truth = self.random.choice([0.0, 0.5, 1.0, 1.0, 2.0])
        return [int(truth * max(at_ns - now_ns, 0)) for at_ns in ready_at_ns]

    def trim(self, ticket: int, num_blocks: int) -> None:
        """Unpin what is behind the first so many blocks of a ticket."""
        if (pinned := self.tickets.get(ticket)) is not None:
            num_kept = num_blocks * self.num_layers
            self.pins.subtract(pinned[num_kept:])
            del pinned[num_kept:]
            self._settle()

    def release(self, ticket: int) -> None:
        """Unpin; a ticket that expired or is of an earlier life means nothing."""
        self.pins.subtract(self.tickets.pop(ticket, []))
        self._settle()

    def expire(self) -> None:
        """Unpin every stage, as if nobody had renewed its ticket."""
        self.tickets.clear()
        self.pins.clear()
        self._settle()

    def lease(self, count: int) -> list[int]:
        """Up to `count` pages to write into."""
        pages: list[int] = []
        while len(pages) < count and (self.free or self._evict()):
            pages.append(self._take())
        self.leased.update(pages)
        return pages

    def give_back(self, pages: list[int]) -> None:
        """Leased pages come back unused."""
        assert self.leased.issuperset(pages), "returned pages that were not leased"
        self.leased.difference_update(pages)
        self.free += pages

    def commit(self, write: BlockWrite) -> None:
        """Take a block over, if its pages were leased and hold what they should."""
        pages = write.arena_pages
        assert len(set(pages)) == self.num_layers, "one page for each layer"
        assert self.leased.issuperset(pages), "committed pages that were not leased"
        expected = [content_of(n, write.parent, write.tokens) for n in range(self.num_layers)]
        held = [self.arena[page] for page in pages]
        assert held == expected, f"committed wrong bytes: {held}, not {expected}"
        self.leased.difference_update(pages)
        known = self.blocks.get(write.key)
        if known is None:
            self.blocks[write.key] = StoredBlock(expected, list(pages), write)
        else:
            assert known.contents == expected, "one key for two contents"
            self.free += pages
        self._replace(write)

    def _replace(self, write: BlockWrite) -> None:
        old = self.blocks.get(write.replaces)
        if old is not None:
            assert old.write.parent == write.parent
            assert old.write.tokens == write.tokens[: len(old.write.tokens)] != write.tokens
            self.lose(write.replaces)

    def persist(self, key: BlockKey) -> None:
        """The disk has it too: its pages may go."""
        if (block := self.blocks.get(key)) is not None:
            block.is_on_disk = True

    def lose(self, key: BlockKey) -> None:
        """A block is gone from every tier, unless a stage pins it."""
        block = self.blocks[key]
        if block.pages is None:
            del self.blocks[key]
        elif not any(self.pins[page] for page in block.pages):
            self._drop_pages(block)
            del self.blocks[key]

    def delete(self, owner: OwnerKey, keys: list[BlockKey]) -> None:
        """A session was deleted. Pages that a stage pins go with the last one that does."""
        own = [key for key, block in self.blocks.items() if block.write.owner == owner]
        for key in dict.fromkeys([*own, *keys]):
            if (block := self.blocks.pop(key, None)) is not None and block.pages is not None:
                self.leaving.append(block)
        self._settle()

    def _settle(self) -> None:
        for block in self.leaving:
            assert block.pages is not None
            if not any(self.pins[page] for page in block.pages):
                self._drop_pages(block)
        self.leaving = [block for block in self.leaving if block.pages is not None]

    def reopen(self) -> None:
        """The worker introduces itself anew: its leases and pins are let go."""
        self.free += sorted(self.leased)
        self.leased.clear()
        self.tickets.clear()
        self.pins.clear()
        self._settle()

    def restart(self) -> None:
        """A new process with an empty arena; what was on disk is there still."""
        self.reopen()
        self.blocks = {key: block for key, block in self.blocks.items() if block.is_on_disk}
        for block in self.blocks.values():
            block.pages = None
        self.arena.clear()
        self.generations.clear()
        self.free = list(range(self.num_pages))

    def _bring_up(self, block: StoredBlock, now_ns: int) -> bool:
        while len(self.free) < self.num_layers:
            if not self._evict():
                return False
        block.pages = [self._take() for _ in range(self.num_layers)]
        for page, content in zip(block.pages, block.contents, strict=True):
            self.arena[page] = content
            self.ready_at_ns[page] = now_ns + self.random.randrange(1, self.disk_ns)
            if self.random.random() < self.doomed_share:
                self.doomed.add(page)
        return True

    def _take(self) -> int:
        page = self.free.pop(self.random.randrange(len(self.free)))
        self.generations[page] = self._next_generation
        self._next_generation += 1
        self.ready_at_ns[page] = 0
        self.doomed.discard(page)
        return page

    def _evict(self) -> bool:
        for block in self.blocks.values():
            if block.pages and block.is_on_disk and not any(self.pins[p] for p in block.pages):
                self._drop_pages(block)
                return True
        return False

    def _drop_pages(self, block: StoredBlock) -> None:
        assert block.pages is not None
        for page in block.pages:
            del self.generations[page]
        self.free += block.pages
        block.pages = None
