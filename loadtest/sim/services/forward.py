"""The forward pass of a simulated worker: KV computed from the KV in the pool, page by page.

As on a real device, what a row computes continues what its pages hold: a wrong page in its table
shows in everything behind it. What they should hold is known from what the client asked for.
"""

from typing import Protocol

from loadtest.sim.memory import GARBAGE, Content, Origin, image_page, next_origin
from loadtest.sim.services.model import NO_ADAPTER, Model
from services.worker.core.adapters.image import NO_LINE
from services.worker.core.step import ImageEntry, Ints, PlannedRow
from services.worker.device.base.tables import BlockTables
from shared.ids import TenantId, TurnId
from shared.wire.messages import SamplingParams


class Asked(Protocol):
    """What a client asked for."""

    prompt: list[int]
    sampling: SamplingParams

    @property
    def tenant(self) -> TenantId: ...

    @property
    def adapter_hash(self) -> str: ...


class Forward:
    """Computes rows.

    Args:
        memory: what each pool page holds.
        tables: pool pages of each row's blocks.
    """

    def __init__(self, model: Model, memory: dict[int, Content], tables: BlockTables) -> None:
        self._model = model
        self._memory = memory
        self._tables = tables

    def write(self, slot: int, row: PlannedRow, new: list[int], asked: Asked) -> None:
        """The KV of the row's new tokens, layer by layer, behind what its pages hold."""
        size = self._model.block_tokens
        first, num_kept = divmod(row.start, size)
        pages_of = self._pages(slot, row.end)
        for layer, pages in enumerate(pages_of.tolist()):
            kept: tuple[int, ...] = ()
            if num_kept:
                _, origin, held = self._memory.get(pages[first], GARBAGE)
                kept = held[:num_kept]
            elif first:
                origin = next_origin(*self._memory.get(pages[first - 1], GARBAGE)[1:])
            else:
                origin = self._root(asked)
            assert len(kept) == num_kept, f"{row.turn_id} goes on behind a token without KV"
            at = 0
            for page in pages[first:]:
                taken = new[at : at + size - len(kept)]
                tokens = (*kept, *taken)
                self._memory[page] = (layer, origin, tokens)
                origin, kept, at = next_origin(origin, tokens), (), at + len(taken)

    def spoil(self, slot: int, row: PlannedRow) -> None:
        """What was computed from history that is not there is no KV of anything. What a page held
        before stays."""
        size = self._model.block_tokens
        blocks = self._pages(slot, row.end)[:, row.start // size :]
        for number, pages in enumerate(blocks.T.tolist(), row.start // size):
            num_kept = max(row.start - number * size, 0)
            for page in pages:
                layer, origin, old = self._memory.get(page, GARBAGE)
                self._memory[page] = (layer, origin, old[:num_kept]) if num_kept else GARBAGE

    def read(self, slot: int, row: PlannedRow, asked: Asked) -> list[int]:
        """The row's tokens, its history's and its new ones.

        Raises:
            AssertionError: its pages hold, in some layer, other KV than that of its own tokens.
        """
        size, end, memory = self._model.block_tokens, row.end, self._memory
        origin = self._root(asked)
        tokens: list[int] = []
        for number, pages in enumerate(self._pages(slot, end).T.tolist()):
            num_own = min(size, end - len(tokens))
            block = memory.get(pages[0], GARBAGE)[2][:num_own]
            assert len(block) == num_own, f"{row.turn_id} reads garbage in block {number}"
            for layer, page in enumerate(pages):
                held = memory.get(page, GARBAGE)
                is_own = held[0] == layer and held[1] == origin and held[2][:num_own] == block
                assert is_own, (
                    f"{row.turn_id} reads wrong KV: block {number}, layer {layer}: {held}"
                )
            origin = next_origin(origin, block)
            tokens += block
        num_prompt = min(len(asked.prompt), end)
        assert tokens[:num_prompt] == asked.prompt[:num_prompt], f"{row.turn_id} reads {tokens}"
        return tokens

    def check_adapter(
        self, turn_id: TurnId, asked: Asked, image: ImageEntry | None, read: dict[int, Content]
    ) -> None:
        """The pages of a row's adapter hold, in every layer, its own image, or helpers `read` it
        for them in the arena.

        Raises:
            AssertionError: they do not.
        """
        name = asked.adapter_hash
        if image is None or name == NO_ADAPTER:
            assert image is None and name == NO_ADAPTER, f"{turn_id} runs on another adapter"
            return
        assert image.adapter_hash == name, f"{turn_id} runs on another adapter"
        for number, pages in enumerate(image.pages.tolist()):
            for layer, page in enumerate(pages):
                held = read.get(page, self._memory.get(page))
                assert held == image_page(name, layer, number), (
                    f"{turn_id} runs on other weights: block {number}, layer {layer}: {held}"
                )

    def _pages(self, slot: int, num_tokens: int) -> Ints:
        """[num_layers, blocks]: pool pages of a row's first tokens."""
        return self._tables.pages[:, slot, : -(-num_tokens // self._model.block_tokens)]

    def _root(self, asked: Asked) -> Origin:
        return (asked.tenant, self._model.fingerprint, asked.adapter_hash)


def image_of(images: dict[int, ImageEntry], line: int) -> ImageEntry | None:
    """What is entered in this line of the adapter tables; None: the base model."""
    return None if line == NO_LINE else images[line]
