"""Where recorded passes find their numbers: buffers of a bucket's size, filled by one copy."""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from kernels.sgmv.interface import NO_ADAPTER
from services.worker.core.step import Ints, StepPlan
from services.worker.device.gpu.device_tables import DeviceTables
from services.worker.device.lora.tables import segments_in
from shared.blocks import BLOCK_TOKENS

NO_SLOT = NO_PAGE = -1
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

A = TypeVar("A")


class PassKind(NamedTuple):
    """What a pass is recorded for.

    Attributes:
        size: tokens, at most.
        is_decode: each row has one token and is followed by a choice; else rows are of any lengths.
        rank: of its adapters at most; 0: all rows are the base model's.
        is_cut: into groups of layers, between which the host may see to what is still loading.
    """

    size: int
    is_decode: bool
    rank: int = 0
    is_cut: bool = False


class PassNumbers(NamedTuple, Generic[A]):
    """What a pass is to compute, int32; padding behind it.

    Attributes:
        tokens, positions: ``[size]``, as in `StepPlan`.
        token_slots: ``[size]``: line of each token's turn in the block tables; `NO_SLOT`: padding.
        carried: ``[size]``: line whose latest token stands in a token's place; `NO_SLOT`: none.
        long: ``[size]``: see `StepContext.is_long`.
        wanted: ``[rows]``: tokens whose logits are computed.
        query_starts, context_lens, slots: ``[rows + 1]``, ``[rows]``, ``[rows]``.
        lora_starts, lora_lines, last_starts, last_lines: segments of all tokens, and of the wanted.
    """

    tokens: A
    positions: A
    token_slots: A
    carried: A
    long: A
    wanted: A
    query_starts: A
    context_lens: A
    slots: A
    lora_starts: A
    lora_lines: A
    last_starts: A
    last_lines: A


def sizes_of(size: int, rows: int) -> PassNumbers[int]:
    """Elements of each, for so many tokens of so many rows."""
    return PassNumbers(
        size, size, size, size, size, rows, rows + 1, rows, rows, rows + 1, rows, rows + 1, rows
    )


@cache
def _spans(size: int, rows: int) -> list[slice]:
    ends = [*accumulate(sizes_of(size, rows))]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def pack(plan: StepPlan, wanted: list[int], kind: PassKind, rows: int) -> Ints:
    """A plan's numbers in one array, padded to a kind of pass with room for so many rows."""
    spans = _spans(kind.size, rows)
    packed: Ints = np.zeros(spans[-1].stop, np.int32)
    to = PassNumbers(*(packed[span] for span in spans))
    num_tokens, num_rows = plan.num_tokens, plan.num_rows
    to.tokens[:num_tokens] = plan.tokens
    to.positions[:num_tokens] = plan.positions()
    to.token_slots.fill(NO_SLOT)
    to.token_slots[:num_tokens] = np.repeat(plan.slots, plan.lengths)
    to.carried.fill(NO_SLOT)
    to.carried[plan.query_starts[plan.carried + 1] - 1] = plan.slots[plan.carried]
    if len(plan.long):
        to.long[:num_tokens] = plan.are_long()
    to.wanted[: len(wanted)] = wanted
    if kind.is_decode:  # padding has a row each, of no context
        to.query_starts[:] = np.arange(rows + 1)
    else:
        to.query_starts.fill(num_tokens)
        to.query_starts[: num_rows + 1] = plan.query_starts
    to.context_lens[:num_rows] = plan.context_lens
    to.slots[:num_rows] = plan.slots
    if kind.rank:
        of_tokens, of_wanted = segments_in(plan, wanted)
        for starts, lines, segments in (
            (to.lora_starts, to.lora_lines, of_tokens),
            (to.last_starts, to.last_lines, of_wanted),
        ):
            count = len(segments.lines)
            starts.fill(segments.starts[-1])
            starts[: count + 1] = segments.starts
            lines.fill(NO_ADAPTER)
            lines[:count] = segments.lines
    return packed


@dataclass(frozen=True, slots=True)
class PassInputs:
    """A kind of pass's own memory on the device.

    Attributes:
        rows: at most.
        packed: int32: what `pack` makes is copied here before each launch.
        numbers: parts of it.
        tokens, positions, wanted: int64 ``[size]``, ``[size]``, ``[rows]``.
        is_long: bool ``[size]``.
        slot_pages, slot_offsets: int32 ``[num_layers, size]``, ``[size]``.
    """

    kind: PassKind
    rows: int
    packed: torch.Tensor
    numbers: PassNumbers[torch.Tensor]
    tokens: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor
    is_long: torch.Tensor
    slot_pages: torch.Tensor
    slot_offsets: torch.Tensor

    def prepare(self, tables: DeviceTables) -> None:
        """Work out what layers read. Launches, and reads nothing: to be recorded."""
        numbers = self.numbers
        latest = tables.latest[numbers.carried.clamp(min=0)]
        self.tokens.copy_(torch.where(numbers.carried >= 0, latest, numbers.tokens))
        self.positions.copy_(numbers.positions)
        self.wanted.copy_(numbers.wanted)
        self.is_long.copy_(numbers.long)
        blocks = numbers.positions // BLOCK_TOKENS
        pages = tables.pages[:, numbers.token_slots.clamp(min=0), blocks]
        self.slot_pages.copy_(torch.where(numbers.token_slots >= 0, pages, NO_PAGE))
        self.slot_offsets.copy_(numbers.positions % BLOCK_TOKENS)


def make_inputs(kind: PassKind, rows_max: int, num_layers: int, device: torch.device) -> PassInputs:
    """Memory of a kind, all of it padding."""
    size, rows = kind.size, min(kind.size, rows_max)
    sizes = sizes_of(size, rows)
    packed = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
    numbers = PassNumbers(*packed.split(list(sizes)))
    numbers.token_slots.fill_(NO_SLOT)
    numbers.carried.fill_(NO_SLOT)
    numbers.lora_lines.fill_(NO_ADAPTER)
    numbers.last_lines.fill_(NO_ADAPTER)
    if kind.is_decode:
        numbers.query_starts.copy_(torch.arange(rows + 1))

    def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return PassInputs(
        kind,
        rows,
        packed,
        numbers,
        tokens=zeros(size, dtype=torch.int64),
        positions=zeros(size, dtype=torch.int64),
        wanted=zeros(rows, dtype=torch.int64),
        is_long=zeros(size, dtype=torch.bool),
        slot_pages=zeros(num_layers, size, dtype=torch.int32),
        slot_offsets=zeros(size, dtype=torch.int32),
    )
