"""What every paged-attention implementation is given."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How scores are made.

    Attributes:
        scale: factor on q k.
        window: a query sees only the last `window` positions, its own included; 0: all.
        chunk: a query sees only positions from the last multiple of `chunk` on; 0: all. Not both.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0: off.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    chunk: int = 0

    def __post_init__(self) -> None:
        assert not (self.window and self.chunk), "a query's view has one limit"

    @property
    def reach(self) -> int:
        """Both limits as one number for compiled kernels: `window`, or below 0 `chunk`."""
        return -self.chunk if self.chunk else self.window

    def first_seen(self, position: int) -> int:
        """The first position that a query at `position` sees.

        >>> AttentionShape(1.0, window=3).first_seen(7), AttentionShape(1.0, chunk=3).first_seen(7)
        (5, 6)
        """
        if self.chunk:
            return position - position % self.chunk
        return max(0, position - self.window + 1) if self.window else 0


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """Which packed rows belong to which sequence, held in the device's own memory.

    Decodes come first, one row each, then prompt chunks. A sequence whose context is 0 is padding:
    it reads no page, and its rows become zeros. The three numbers choose how much is launched, and
    nothing else: as long as they are not too small, the tensors may change under a recorded launch.

    Attributes:
        query_starts: int32 ``[num_seqs + 1]``: row of each sequence's first query, then the total.
        context_lens: int32 ``[num_seqs]``: tokens each sequence has with its new ones.
        slots: int32 ``[num_seqs]``: each sequence's line in the tables.
        num_decodes: this many sequences have one row each and come first, padding included.
        query_len_max: no prompt chunk has more new tokens.
        context_len_max: no sequence has more tokens.
        is_packed: sequences have any lengths, in any order, and padding has no rows: one launch for
            all, whose size depends on the numbers of rows and of sequences alone.
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    slots: torch.Tensor
    num_decodes: int
    query_len_max: int
    context_len_max: int
    is_packed: bool = False

    @property
    def num_seqs(self) -> int:
        return self.context_lens.shape[0]


@dataclass(frozen=True, slots=True)
class HostArrays:
    """A batch's lists and tables as compiled code takes them.

    Attributes:
        page_tables: int32 ``[num_layers, num_slots, max_blocks]``, the tensor's memory.
        runs: sequences by who serves them, for each kind of division that was asked for.
    """

    query_starts: Ints
    context_lens: Ints
    slots: Ints
    page_tables: npt.NDArray[np.int32]
    runs: dict[tuple[int, ...], list[tuple[range, int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Which packed rows belong to which sequence.

    Attributes:
        query_starts: row of each sequence's first query, ``[num_seqs + 1]``, ends with the total.
        context_lens: tokens each sequence has with its new ones, ``[num_seqs]``.
        slots: each sequence's line in the tables, ``[num_seqs]``.
        page_tables: int32 ``[num_layers, num_slots, max_blocks]``: pool page of each block.
        on_device: the same for kernels that read it on the device; those need no lists.
        is_invariant: a row's result must not depend on how many others are computed with it, nor on
            how many new tokens its sequence has.
    """

    query_starts: list[int]
    context_lens: list[int]
    slots: list[int]
    page_tables: torch.Tensor
    on_device: DeviceBatch | None = None
    is_invariant: bool = False
    _arrays: list[HostArrays] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)

    @property
    def arrays(self) -> HostArrays:
        """Made when it is asked for first: every layer asks. Tables are on the host."""
        if not self._arrays:
            made = HostArrays(
                np.asarray(self.query_starts, np.int64),
                np.asarray(self.context_lens, np.int64),
                np.asarray(self.slots, np.int64),
                self.page_tables.numpy(),
            )
            self._arrays.append(made)
        return self._arrays[0]
