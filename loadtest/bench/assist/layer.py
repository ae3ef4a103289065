"""All that an adapter adds to one layer, by helpers and by threads."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.sgmv import Segments, add_lora, warm_up
from kernels.sgmv.reference import add_lora_reference
from loadtest.random_adapters import RandomAdapters, Weights, segments_of, site_of
from services.worker.device.assist.host_crew import HostCrew
from services.worker.device.assist.orders import AssistedImage, Spec
from shared.arena import Arena, PageState
from shared.errors import SymphonyError
from shared.messages import LoraCard, LoraTarget

NUM_LAYERS = 8  # that take turns, so that weights do not come from the nearest caches
BLOCK_TOKENS = 64  # of a KV page, in which the weights lie
SITES = (["q", "k", "v"], ["o"], ["gate", "up"], ["down"])
WARM_UPS = 3
START_NS = 600_000_000_000
TIMEOUT_NS = 30_000_000_000
TOLERANCE = 1e-4  # |got - want| over |want| of a row, in float32

Plain = tuple[torch.Tensor, list[torch.Tensor]]
"""All A of a site, ``[num_in, ranks]``, and each B, ``[rank, num_out]``."""


class Adapters:
    """One adapter of each rank, as line 0, 1, ..., in an arena and beside it as plain matrices.

    Attributes:
        plain: by line, layer and site.

    Args:
        hidden: inputs of a layer; the inner ones are 8 / 3 times as many.
    """

    def __init__(
        self, folder: Path, hidden: int, dtype: torch.dtype, ranks: tuple[int, ...]
    ) -> None:
        inner = hidden * 8 // 3
        shapes = dict.fromkeys("qkvo", (hidden, hidden))
        shapes |= {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}
        self.ranks, self.dtype = ranks, dtype
        self.card = LoraCard(
            layers_path="layers",
            num_layers=NUM_LAYERS,
            element_bytes=dtype.itemsize,
            page_bytes=2 * hidden * BLOCK_TOKENS * dtype.itemsize,
            targets=[LoraTarget(name=n, num_in=i, num_out=o) for n, (i, o) in shapes.items()],
        )
        self.sites = tuple(site_of(self.card, names) for names in SITES)
        weights_of_rank = sum(num_in + num_out for num_in, num_out in shapes.values())
        page_elements = self.card.page_bytes // dtype.itemsize
        blocks = sum(2 + len(shapes) + rank * weights_of_rank // page_elements for rank in ranks)
        made = RandomAdapters(self.card, dtype, NUM_LAYERS * blocks)
        weights = [made.add(dict.fromkeys(shapes, rank)) for rank in ranks]
        self.plain = [self._plain(each) for each in weights]
        self.tables = made.tables
        self.arena = Arena.create(folder / "arena", made.num_pages, self.card.page_bytes)
        self.arena.pages[:] = made.pool.view(torch.uint8).numpy()
        every = list(range(made.num_pages))
        self.arena.set_words(every, [1] * len(every), PageState.READY)
        self.pool = torch.from_numpy(self.arena.pages).view(dtype)

    def _plain(self, weights: dict[tuple[int, int], Weights]) -> list[list[Plain]]:
        """An adapter's matrices, by layer and site."""
        layers = []
        for layer in range(NUM_LAYERS):
            sites: list[Plain] = []
            for site in self.sites:
                its = [weights[layer, target] for target in site.targets]
                # The scale lies in B, as who has the matrices for himself would have it.
                parts = [(each.scale * each.b.float()).to(self.dtype) for each in its]
                sites.append((torch.cat([each.a for each in its]).T.contiguous(), parts))
            layers.append(sites)
        return layers

    @property
    def images(self) -> dict[int, AssistedImage]:
        """By line."""
        images = {}
        for line, rank in enumerate(self.ranks):
            pages = self.tables.pages[:, line].tolist()
            ranks = {each.name: rank for each in self.card.targets}
            generations = [[1] * len(of_layer) for of_layer in pages]
            images[line] = AssistedImage(str(rank), ranks, pages, generations, epoch=1)
        return images

    def spec(self, num_rows: int, rows_max: int | None = None) -> Spec:
        """What helpers would work for."""
        return Spec(self.card, self.dtype, self.sites, num_rows, rows_max)

    def inputs(self, num_rows: int) -> list[torch.Tensor]:
        """Of each site."""
        spec = self.spec(num_rows)
        widths = [spec.num_in(site) for site in range(len(self.sites))]
        return [torch.randn(num_rows, width).to(self.dtype) for width in widths]

    @contextmanager
    def crew(
        self, num_helpers: int, tokens_max: int, rows_max: int | None = None
    ) -> Iterator[HostCrew]:
        """One that is ready."""
        crew = HostCrew(self.spec(tokens_max, rows_max), num_helpers)
        try:
            crew.attach(self.arena, epoch=1)
            if not crew.await_ready(num_helpers, START_NS):
                raise SymphonyError("helpers do not start")
            yield crew
        finally:
            crew.close()

    def refuse_if_wrong(self, num_rows: int) -> None:
        """Try two helpers on a batch of all adapters.

        Raises:
            AssertionError: they do not agree with the reference.
        """
        lengths = [(line, num_rows // len(self.ranks)) for line in range(len(self.ranks))]
        segments = segments_of([*lengths, (0, num_rows % len(self.ranks))])
        of_row = np.repeat(segments.lines, np.diff(segments.starts))
        xs = self.inputs(num_rows)
        with self.crew(2, num_rows, rows_max=1) as crew:
            assert crew.begin(self.images)
            for site, x in enumerate(xs):
                crew.submit(1, site, x, torch.from_numpy(of_row))
                got = crew.collect(TIMEOUT_NS)
                assert got is not None, "the crew does not answer"
                arguments = self.pool, 1, self.sites[site], segments, self.tables
                want = add_lora_reference(x, torch.zeros_like(got), *arguments)
                error = float(((got - want).norm(dim=1) / want.norm(dim=1)).max())
                assert error < TOLERANCE, f"the crew is wrong by {error:.2g}"
            crew.end()


def measure_one_core(
    adapters: Adapters, num_tokens: tuple[int, ...], rounds: int
) -> list[dict[str, Any]]:
    """Median milliseconds of one helper for a layer, by rank and rows."""
    rows = []
    with adapters.crew(1, max(num_tokens), rows_max=max(num_tokens)) as crew:
        for line, rank in enumerate(adapters.ranks):
            for tokens in num_tokens:
                xs = adapters.inputs(tokens)
                took = [_by_crew(crew, adapters, line, xs, at) for at in range(WARM_UPS + rounds)]
                ms = statistics.median(took[WARM_UPS:])
                rows.append({"lora_rank": rank, "tokens": tokens, "ms": round(ms, 4)})
                print(f"one core {rows[-1]}", flush=True)
    return rows


def measure_beside_threads(
    adapters: Adapters, num_helpers: int, num_tokens: tuple[int, ...], rounds: int
) -> list[dict[str, Any]]:
    """Median milliseconds for a layer of a crew, of torch's threads, and of the kernel's threads,
    by rank and rows; they take turns."""
    warm_up(adapters.dtype, torch.float32)
    rows = []
    with adapters.crew(num_helpers, max(num_tokens)) as crew:
        for line, rank in enumerate(adapters.ranks):
            for tokens in num_tokens:
                medians = _beside(crew, adapters, line, adapters.inputs(tokens), rounds)
                row: dict[str, Any] = {"lora_rank": rank, "tokens": tokens}
                row |= {name: round(ms, 4) for name, ms in medians.items()}
                for name in ("torch", "kernel"):
                    row[f"{name}_over_processes"] = round(medians[name] / medians["processes"], 2)
                rows.append(row)
                print(f"beside threads {row}", flush=True)
    return rows


def _beside(
    crew: HostCrew, adapters: Adapters, line: int, xs: list[torch.Tensor], rounds: int
) -> dict[str, float]:
    segments = segments_of([(line, len(xs[0]))])
    spec = adapters.spec(len(xs[0]))
    outputs = [torch.zeros(len(x), spec.num_out(site)) for site, x in enumerate(xs)]
    works: dict[str, Callable[[int], float]] = {
        "processes": lambda at: _by_crew(crew, adapters, line, xs, at),
        "torch": lambda at: _by_torch(adapters, line, xs, at),
        "kernel": lambda at: _by_kernel(adapters, segments, xs, outputs, at),
    }
    took: dict[str, list[float]] = defaultdict(list)
    for at in range(WARM_UPS + rounds):
        for name, work in works.items():
            took[name].append(work(at))
    return {name: statistics.median(each[WARM_UPS:]) for name, each in took.items()}


def _by_crew(
    crew: HostCrew, adapters: Adapters, line: int, xs: list[torch.Tensor], at: int
) -> float:
    """Milliseconds of a layer. Helpers are awake when it begins, as behind a pass's first layer."""
    of_row = torch.full((len(xs[0]),), line, dtype=torch.int32)
    if not crew.begin(adapters.images):
        raise SymphonyError("a helper is gone")
    _through_crew(crew, at + 1, xs[:1], of_row)
    started = time.perf_counter()
    _through_crew(crew, at, xs, of_row)
    took = time.perf_counter() - started
    crew.end()
    return took * 1e3


def _through_crew(crew: HostCrew, at: int, xs: list[torch.Tensor], of_row: torch.Tensor) -> None:
    for site, x in enumerate(xs):
        crew.submit(at % NUM_LAYERS, site, x, of_row)
        if crew.collect(TIMEOUT_NS) is None:
            raise SymphonyError("a helper does not answer")


def _by_torch(adapters: Adapters, line: int, xs: list[torch.Tensor], at: int) -> float:
    """Milliseconds of torch's products: the targets of a site share the first one."""
    weights = adapters.plain[line][at % NUM_LAYERS]
    started = time.perf_counter()
    for x, (a, parts) in zip(xs, weights, strict=True):
        shrunk = x @ a
        for b, part in zip(parts, shrunk.chunk(len(parts), 1), strict=True):
            part @ b
    return (time.perf_counter() - started) * 1e3


def _by_kernel(
    adapters: Adapters,
    segments: Segments,
    xs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    at: int,
) -> float:
    """Milliseconds of the kernel that serves, in this process."""
    started = time.perf_counter()
    for site, x, y in zip(adapters.sites, xs, outputs, strict=True):
        y.zero_()
        add_lora(x, y, adapters.pool, at % NUM_LAYERS, site, segments, adapters.tables)
    return (time.perf_counter() - started) * 1e3
