"""What is in pages, by what it is the KV of. Bytes are not modelled: their origin is.

An origin names the tenant, the model and every token up to its end, as the worker that computed it
knew them, never by a block key: so a key that names too little is detected.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.sim.timeline import Action
from services.worker.core.effects import PageLoads
from shared.arena import PageState
from shared.blocks import BlockKey
from shared.owners import OwnerKey

Origin = tuple[object, ...]
Content = tuple[int, Origin, tuple[int, ...]]  # layer, of what it continues, the block's tokens

GARBAGE: Content = (-1, (), ())


def origins(root: Origin, tokens: list[int], block_tokens: int) -> list[Origin]:
    """What each block of `tokens`, the partial last one included, continues."""
    chain = [root]
    for start in range(0, len(tokens) - block_tokens, block_tokens):
        chain.append((hash((chain[-1], tuple(tokens[start : start + block_tokens]))),))
    return chain


class PageLoad(NamedTuple):
    """One page of a run of loads."""

    arena_page: int
    generation: int
    pool_page: int
    epoch: int
    ready_at_ns: int


def each_page(run: PageLoads) -> list[PageLoad]:
    """A run, page by page."""
    pages = zip(run.arena_pages, run.generations, run.pool_pages, strict=True)
    return [PageLoad(*page, run.epoch, run.ready_at_ns) for page in pages]


@dataclass
class ArenaMemory:
    """A host's shared memory: a word and a content a page. Outlives its kvstore for those who still
    map it.
    """

    num_pages: int
    words: list[tuple[int, PageState]] = field(init=False)
    contents: list[Content] = field(init=False)
    _waiting: dict[int, list[Action]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.words = [(0, PageState.FREE)] * self.num_pages
        self.contents = [GARBAGE] * self.num_pages

    def set_word(self, page: int, generation: int, state: PageState) -> None:
        """Write as the kvstore does: readers that poll the page see it from now on."""
        old, _ = self.words[page]
        assert generation > old if state is PageState.FILLING else generation == old
        self.words[page] = (generation, state)
        for action in self._waiting.pop(page, ()):
            action()

    def set_words(self, pages: list[int], generations: list[int], state: PageState) -> None:
        """Of several pages."""
        for page, generation in zip(pages, generations, strict=True):
            self.set_word(page, generation, state)

    def promise(self, page: int, generation: int) -> PageState:
        """What a reader that was promised this page under `generation` may expect."""
        current, state = self.words[page]
        return state if current == generation else PageState.BAD

    def watch(self, page: int, action: Callable[[], None]) -> None:
        """Run `action` when the page's word changes."""
        self._waiting.setdefault(page, []).append(action)


@dataclass
class DiskBlock:
    """A block on disk: a content a layer; a damaged one fails its checksum. `used_at_ns` and
    `expiry_s` are what is noted of its last use.
    """

    num_layers: int
    contents: list[Content]
    owner: OwnerKey
    parent: BlockKey
    is_damaged: bool = False
    used_at_ns: int = 0
    expiry_s: int = 0
