"""One cell of `bench sgmv`: a batch, who is popular, and ranks."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels.sgmv import AdapterTables, Segments, Site, add_lora, make_tables
from loadtest.bench.sgmv.dense import add_lora_bmm, add_lora_dense_loop, add_lora_gather_bmm
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.random_adapters import enter_image, segments_of
from loadtest.streaming import Stream
from shared.adapters.layout import layout_image
from shared.wire.messages.adapters import LoraCard, LoraTarget

NAMES = ("sgmv", "loop", "gather_bmm", "bmm", "padded")
NUM_TARGETS = 7  # linear layers of a decoder layer
BLOCK_TOKENS = 64  # of a KV page, in which the weights lie
WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """Attributes:
    ranks: that adapters have in turn.
    """

    batch: int
    popularity: str
    ranks: tuple[int, ...]


class Measurer:
    """Measures cells, all of them with weights out of one large memory.

    Args:
        hidden: inputs and outputs of the projection.
        size_bytes: of the memory; several times the caches.
        rounds: repetitions of each figure.
        names: implementations, some of `NAMES`.
    """

    def __init__(
        self,
        hidden: int,
        dtype: torch.dtype,
        size_bytes: int,
        rounds: int,
        names: Sequence[str] = NAMES,
    ) -> None:
        self._hidden = hidden
        self._rounds = rounds
        self._names = names
        self._stream = Stream(dtype, size_bytes, hidden**-0.5)
        self._memory = self._stream.memory
        self._page_elements = page_elements(hidden)

    def stream_gb_per_s(self) -> float:
        """Reading the memory with all threads: the median of what was measured before each cell."""
        return self._stream.gb_per_s()

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Median milliseconds of each implementation, which take turns."""
        self._stream.measure()
        rows_of = POPULARITIES[cell.popularity](cell.batch)
        ranks = [cell.ranks[number % len(cell.ranks)] for number in range(len(rows_of))]
        x = torch.randn(cell.batch, self._hidden).to(self._memory.dtype)
        base = self._memory[: self._hidden**2].view(self._hidden, self._hidden)
        works = self._works(x, rows_of, ranks)
        names = self._names
        times: dict[str, list[float]] = {name: [] for name in names}
        num_rounds = WARM_UPS + self._rounds
        for number in range(num_rounds):
            # Each begins a round now and then: what ran before leaves caches and threads its way.
            for place in range(len(names)):
                which = (place + number) % len(names)
                name = names[which]
                x @ base  # as in a step, where the projection comes first
                started = time.perf_counter()
                works[name](number + which * num_rounds)  # weights that no other has just read
                times[name].append(time.perf_counter() - started)
        row: dict[str, Any] = {
            "batch": cell.batch,
            "popularity": cell.popularity,
            "ranks": list(cell.ranks),
            "ranks_of_rows": np.repeat(ranks, rows_of).tolist(),
            "adapter_bytes": 2 * self._hidden * sum(ranks) * self._memory.itemsize,
        }
        for name, each in times.items():
            row[name] = round(statistics.median(each[WARM_UPS:]) * 1e3, 5)
        return row

    def _works(
        self, x: torch.Tensor, rows_of: list[int], ranks: list[int]
    ) -> dict[str, Callable[[int], None]]:
        hidden, rank_max = self._hidden, max(ranks)
        y = torch.randn_like(x)
        of_row = torch.repeat_interleave(torch.arange(len(ranks)), torch.tensor(rows_of))
        segments = segments_of(list(enumerate(rows_of)))
        ends = segments.starts.tolist()
        parts = [(number, ends[number], ends[number + 1]) for number in range(len(ranks))]
        dense = _Dense(self._memory, len(ranks), hidden, rank_max)
        gathered = _Dense(self._memory, len(x), hidden, rank_max)
        return {
            "sgmv": self._kernel(x, y, segments, ranks),
            "loop": lambda number: add_lora_dense_loop(x, y, *dense.at(number), parts),
            "gather_bmm": lambda number: add_lora_gather_bmm(x, y, *dense.at(number), of_row),
            "bmm": lambda number: add_lora_bmm(x, y, *gathered.at(number)),
            "padded": self._kernel(x, y, segments, [rank_max] * len(ranks)),
        }

    def _kernel(
        self, x: torch.Tensor, y: torch.Tensor, segments: Segments, ranks: list[int]
    ) -> Callable[[int], None]:
        """The serving kernel over pages in a random order; each call takes another target."""
        num_pages = len(self._memory) // self._page_elements
        tables, num_layers = enter_adapters(self._hidden, self._memory.itemsize, num_pages, ranks)
        pool = self._memory[: num_pages * self._page_elements].view(num_pages, -1)
        sites = [Site((target,), (0,), (self._hidden,)) for target in range(NUM_TARGETS)]

        def work(number: int) -> None:
            layer = number // NUM_TARGETS % num_layers
            add_lora(x, y, pool, layer, sites[number % NUM_TARGETS], segments, tables)

        return work


def enter_adapters(
    hidden: int, element_bytes: int, num_pages: int, ranks: Sequence[int]
) -> tuple[AdapterTables, int]:
    """Tables of adapters of `NUM_TARGETS` targets that fill so many pages of `page_elements`, in a
    random order, and how many layers they have then; whatever lies there are their weights.
    """
    names = [f"t{number}" for number in range(NUM_TARGETS)]
    card = LoraCard(
        layers_path="layers",
        num_layers=1,
        element_bytes=element_bytes,
        page_bytes=page_elements(hidden) * element_bytes,
        targets=[LoraTarget(name=name, num_in=hidden, num_out=hidden) for name in names],
    )
    layouts = [layout_image(card, dict.fromkeys(names, rank)) for rank in ranks]
    blocks = [layout.num_blocks for layout in layouts]
    num_layers = num_pages // sum(blocks)
    assert num_layers, "the memory does not hold one layer of these adapters"
    order = np.random.default_rng(0).permutation(num_pages)
    of_line = np.split(
        order[: num_layers * sum(blocks)].reshape(num_layers, -1), np.cumsum(blocks)[:-1], 1
    )
    tables = make_tables(num_layers, NUM_TARGETS)
    for line, layout in enumerate(layouts):
        enter_image(tables, line, layout, of_line[line].tolist())
    return tables, num_layers


def page_elements(hidden: int) -> int:
    """Of a page: keys and values of a block, as wide as the model."""
    return 2 * hidden * BLOCK_TOKENS


class _Dense:
    """Weights as plain tensors, at another place of the memory for each repetition."""

    def __init__(self, memory: torch.Tensor, count: int, hidden: int, rank: int) -> None:
        self._memory = memory
        self._shapes = (count, hidden, rank), (count, rank, hidden)
        self._half = count * hidden * rank
        self._num_places = len(memory) // (2 * self._half)
        assert self._num_places, "the memory does not hold these adapters"

    def at(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = number % self._num_places * 2 * self._half
        both = self._memory[begin : begin + 2 * self._half]
        return both[: self._half].view(self._shapes[0]), both[self._half :].view(self._shapes[1])
