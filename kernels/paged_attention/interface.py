"""What every paged-attention implementation is given."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How scores are made.

    Attributes:
        scale: factor on q k.
        window: a query sees only the last `window` positions, its own included; 0: all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0: off.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Which packed rows belong to which sequence.

    Attributes:
        query_starts: row of each sequence's first query, ``[num_seqs + 1]``, ends with the total.
        context_lens: tokens each sequence has with its new ones, ``[num_seqs]``.
        slots: each sequence's line in the tables, ``[num_seqs]``.
        page_tables: int32 ``[num_layers, num_slots, max_blocks]``: pool page of each block.
    """

    query_starts: list[int]
    context_lens: list[int]
    slots: list[int]
    page_tables: torch.Tensor

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)
