"""Recorded launches of whole decode steps.

Launching a model's kernels one by one takes the host longer than a GPU takes to run them for a few
rows. A step of decodes alone is the same launches each time, on other numbers: it is recorded once
for each of a few batch sizes and then launched by one call, with the rows that are missing padded.
Source: CUDA graphs, as every GPU engine has them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

Forward = Callable[[], torch.Tensor]
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Where a recorded launch finds its numbers; rows behind the last one have context 0.

    Attributes:
        tokens, positions: int64 ``[rows]``.
        slots, context_lens: int32 ``[rows]``.
        query_starts: int32 ``[rows + 1]``: 0, 1, 2, ...
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor

    def first(self, num_rows: int) -> "DecodeInputs":
        """The same memory, of fewer rows."""
        return DecodeInputs(
            self.tokens[:num_rows],
            self.positions[:num_rows],
            self.slots[:num_rows],
            self.context_lens[:num_rows],
            self.query_starts[: num_rows + 1],
        )

    def fill(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        context_lens: torch.Tensor,
    ) -> None:
        """Enter a step's rows, and pad."""
        num_rows = len(slots)
        for kept, given in (
            (self.tokens, tokens),
            (self.positions, positions),
            (self.slots, slots),
            (self.context_lens, context_lens),
        ):
            kept[:num_rows] = given
            kept[num_rows:] = 0


def decode_inputs(num_rows: int, device: torch.device) -> DecodeInputs:
    """Room for so many rows, all of them padding."""
    longs = torch.zeros((2, num_rows), dtype=torch.int64, device=device)
    ints = torch.zeros((2, num_rows), dtype=torch.int32, device=device)
    starts = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
    return DecodeInputs(longs[0], longs[1], ints[0], ints[1], starts)


class DecodeGraphs:
    """A recorded launch for each bucket of rows.

    Args:
        rows_max: of the largest bucket.
        forward: a step on these inputs, to logits ``[rows, vocab]``; launches, and reads nothing.
        record: makes of a launch one that is repeated by a call; see `cuda_recorder`.
    """

    def __init__(
        self,
        rows_max: int,
        device: torch.device,
        forward: Callable[[DecodeInputs], torch.Tensor],
        record: Callable[[Forward], Forward],
    ) -> None:
        self._inputs = decode_inputs(rows_max, device)
        self._forward = forward
        self._record = record
        self._buckets = [size for size in BUCKETS if size < rows_max] + [rows_max]
        self._recorded: dict[int, Forward] = {}

    def record_all(self) -> None:
        """Record every bucket, the largest first: the others fit into its memory."""
        for size in reversed(self._buckets):
            self._launch_of(size)

    def run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        context_lens: torch.Tensor,
    ) -> torch.Tensor:
        """Launch a step of decodes; its logits, which the next launch overwrites."""
        num_rows = len(slots)
        size = next(size for size in self._buckets if size >= num_rows)
        self._inputs.first(size).fill(tokens, positions, slots, context_lens)
        return self._launch_of(size)()[:num_rows]

    def _launch_of(self, size: int) -> Forward:
        if size not in self._recorded:
            inputs = self._inputs.first(size)
            self._recorded[size] = self._record(lambda: self._forward(inputs))
        return self._recorded[size]


def cuda_recorder() -> Callable[[Forward], Forward]:
    """Records CUDA graphs that share one memory pool: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def record(forward: Forward) -> Forward:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):  # what is made at the first call must not be recorded
                forward()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = forward()

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay

    return record
