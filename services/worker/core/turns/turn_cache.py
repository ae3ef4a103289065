"""The KV of one turn: which blocks it holds, and under which keys others find them."""

from dataclasses import dataclass, field

from services.worker.core.kv.pages import Block
from services.worker.core.kv.residency import Chain
from shared.blocks import BlockKey, child_key, sequence_root
from shared.owners import OwnerKey
from shared.wire.messages import KvPlace


@dataclass(slots=True)
class TurnCache:
    """Attributes:
    owner: the turn's session.
    tokens: the turn's, which grow.
    root: parent key of the first block; a sequence that becomes long gets another one.
    num_history: of its tokens, how many of the first its session's last turn left the KV of, as its
        frontend reports; where that is wrong, its tail is not found.
    is_private: its session was deleted: its KV is neither cached nor offloaded.
    keys: of its full blocks, as far as they were needed.
    prefix: its leading blocks, which others can find and run on as well.
    tail: the last of those, if it has only the end of the history and the turn goes on in it; it
        cannot be found any more once the turn runs.
    own: the blocks behind those, with all their pages.
    unreported_blocks: numbers of blocks that no plan has passed to the executor yet.
    found: where its reusable blocks were when the turn came: how many in each place, in order.
    num_cached: leading tokens that did not have to be computed when it was first admitted.
    num_kept: of a cancelled turn: its leading tokens that the session's next turn begins with.
    short_rope_max: longer sequences have KV of another kind, see `EngineLimits`; 0: none.
    is_long: it is such a sequence, from its first position on.
    """

    owner: OwnerKey
    tokens: list[int]
    block_tokens: int
    root: BlockKey
    num_history: int = 0
    is_private: bool = False
    keys: list[BlockKey] = field(default_factory=list)
    prefix: Chain = field(init=False)
    tail: Block | None = None
    own: list[Block] = field(default_factory=list)
    unreported_blocks: list[int] = field(default_factory=list)
    found: dict[KvPlace, int] = field(default_factory=dict)
    num_cached: int = 0
    num_kept: int = 0
    short_rope_max: int = 0
    is_long: bool = False

    def __post_init__(self) -> None:
        self.prefix = Chain(self.owner)

    @property
    def num_blocks(self) -> int:
        """Blocks that it has the pages of."""
        return len(self.prefix.blocks) + len(self.own)

    def held(self, index: int) -> Block:
        """Its block `index`."""
        shared = self.prefix.blocks
        return shared[index] if index < len(shared) else self.own[index - len(shared)]

    def block(self, index: int) -> list[int]:
        """Tokens of block `index`."""
        return self.tokens[index * self.block_tokens : (index + 1) * self.block_tokens]

    def key(self, index: int) -> BlockKey:
        """Key of full block `index`, computed on first use."""
        while len(self.keys) <= index:
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(child_key(parent, self.block(len(self.keys))))
        return self.keys[index]

    def parent_key(self, index: int) -> BlockKey:
        return self.key(index - 1) if index else self.root

    @property
    def tail_index(self) -> int:
        """Number of the block in which its history ends."""
        return self.num_history // self.block_tokens

    def tail_key(self) -> BlockKey:
        """Key of what its history has of the block in which it ends."""
        start = self.tail_index * self.block_tokens
        return child_key(self.parent_key(self.tail_index), self.tokens[start : self.num_history])

    def on_outgrown(self, length: int) -> None:
        """It is a long sequence from now on, and holds nothing: its tokens so far are to be
        computed as a long prompt.

        Args:
            length: of the sequence.
        """
        assert not self.num_blocks, "its blocks hold the KV of a short sequence"
        self.root = sequence_root(self.root, length, self.short_rope_max)
        self.is_long = True
        self.keys = []
        self.prefix = Chain(self.owner)

    def add_blocks(self, blocks: list[Block]) -> None:
        """Blocks behind those that it has, with all their pages."""
        num_blocks = self.num_blocks
        self.unreported_blocks += range(num_blocks, num_blocks + len(blocks))
        self.own += blocks

    def share(self, block: Block) -> None:
        """Its first block that is its own alone can be found from now on, or is replaced by a twin
        that can be."""
        if self.own.pop(0) is not block:
            self.unreported_blocks.append(len(self.prefix.blocks))
        self.prefix.blocks.append(block)

    def cached_in(self, num_prompt: int) -> dict[KvPlace, int]:
        """Where the prompt's tokens were that were not computed, when the turn came: those that are
        cached beyond what was found have come into the pool since, with another turn.

        Args:
            num_prompt: tokens of the prompt.
        """
        cached: dict[KvPlace, int] = {}
        num_left = min(self.num_cached, num_prompt)
        for place, num_blocks in self.found.items():
            cached[place] = min(num_blocks * self.block_tokens, num_left)
            num_left -= cached[place]
        if num_left:
            cached["pool"] = cached.get("pool", 0) + num_left
        return {place: num for place, num in cached.items() if num}
