"""Figure 3, right: how long an adapter takes to come, by rank."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure as Drawing

from loadtest.bench.lora.made import MadeAdapter, make_adapters
from loadtest.in_process_engine import InProcessEngine, Moves, some_prompt
from loadtest.local_store import LocalStore
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing
from loadtest.papers.caraserve.link import LINK_MB_S, SIMULATED_LINK
from loadtest.papers.real import here, model_folder, real
from loadtest.plots import doubling_x, log_y
from services.worker.core.adapters.stats import Source
from services.worker.core.effects import BlockWrite
from services.worker.device.cpu.torch_executor import PREFILL_TOKENS, TorchExecutor
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.model import load_model
from shared.adapters.layout import image_bytes, layout_image
from shared.blocks import image_keys, image_root

ARENA, LINK, FILES = "arena", "link", "files"
SOURCES = {
    ARENA: "from the arena, as near as the pool",
    LINK: f"from the arena, over a link of {LINK_MB_S} MB/s",
    FILES: "built from its files",
}
SPARE_BLOCKS = 8
SHARED_MEMORY = Path("/dev/shm")
# Section 2.3: from host memory to a GPU, by size.
PAPER = "a few to tens"


def measure(work: Work, effort: Effort) -> Results:
    """Milliseconds from asking for an image to having all of it in the pool, by rank and source."""
    ranks = effort.pick((4, 8), (8, 16, 32, 64), (8, 16, 32, 64, 128))
    rounds = effort.pick(1, 3, 9)
    results = here() | {"link_mb_s": LINK_MB_S}
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with TemporaryDirectory(dir=place) as name, ThreadPoolExecutor(1) as thread:
        folder = Path(name)
        source = model_folder(effort, results["dtype"], folder)
        model = thread.submit(load_model, str(source), "cpu", "auto").result()

        def of_rank(rank: int) -> dict[str, Any]:
            return _of_rank(model, rank, folder, thread, rounds)

        return results | {"rows": work.map(of_rank, ranks)}


def _of_rank(
    model: LoadedModel, rank: int, folder: Path, thread: ThreadPoolExecutor, rounds: int
) -> dict[str, Any]:
    """Medians of one adapter's loads, each into an empty pool."""
    card = model.lora
    assert card is not None, "the model takes adapters"
    (adapter,) = make_adapters(folder, card, "all", [rank], 1)
    layout = layout_image(card, adapter.ref.ranks)
    num_pages = (layout.num_blocks + SPARE_BLOCKS) * card.num_layers
    store = LocalStore(folder, layout.num_blocks * card.num_layers, card.page_bytes)
    _put(model, adapter, store)
    loader = _Loader(model, adapter, num_pages, thread)
    ms = {FILES: loader.median_ms("files", 0, None, rounds)}
    ms[ARENA] = loader.median_ms("kvstore", 0, store, rounds)
    ms[LINK] = loader.median_ms("kvstore", LINK_MB_S, store, rounds)
    store.close()
    return {
        "rank": rank,
        "image_mb": round(image_bytes(card, layout) / 1e6, 2),
        "ms": {kind: round(ms[kind], 2) for kind in SOURCES},
    }


def _put(model: LoadedModel, adapter: MadeAdapter, store: LocalStore) -> None:
    """Have an adapter's image in the store, as after a worker's commits."""
    image = model.read_image(adapter.ref, adapter.folder)
    num_layers, num_blocks, _ = image.shape
    parent = image_root(model.fingerprint, adapter.ref.adapter_hash)
    keys = image_keys(model.fingerprint, adapter.ref.adapter_hash, num_blocks)
    for block, key in enumerate(keys):
        pages = store.lease(num_layers)
        store.arena.pages[pages] = image[:, block]
        store.commit([BlockWrite(block, key, parent, [block], [], pages)])
        parent = key


@dataclass(frozen=True, slots=True)
class _Loader:
    """Has one adapter brought up, by the production core and mover."""

    model: LoadedModel
    adapter: MadeAdapter
    num_pages: int
    thread: ThreadPoolExecutor

    def median_ms(
        self, source: Source, link_mb_s: int, store: LocalStore | None, rounds: int
    ) -> float:
        """Of so many loads.

        Raises:
            AssertionError: one of them came from elsewhere.
        """
        moves = Moves()
        executor = self.thread.submit(self._executor, moves, link_mb_s).result()
        loads = [self._load(executor, moves, store) for _ in range(rounds)]
        executor.close()
        assert {each for each, _ in loads} == {source}, f"an adapter did not come from {source}"
        return median(duration_ns for _, duration_ns in loads) / 1e6

    def _executor(self, moves: Moves, link_mb_s: int) -> TorchExecutor:
        executor = TorchExecutor(self.model, "bench", self.num_pages, moves, link_mb_s * 1e6)
        executor.warm_up()
        return executor

    def _load(
        self, executor: TorchExecutor, moves: Moves, store: LocalStore | None
    ) -> tuple[Source, int]:
        engine = InProcessEngine(
            executor,
            self.thread,
            PREFILL_TOKENS,
            store=store,
            moves=moves,
            adapters_path=str(self.adapter.folder.parent),
        )
        engine.submit(some_prompt(0, 2, self.model.vocab_size), 1, self.adapter.ref)
        engine.run()
        (load,) = engine.core.adapters.stats.loads
        return load


def draw(results: Results) -> Drawing:
    """Left milliseconds by rank, a line for each source; right the size."""
    drawing = new_drawing()
    ranks = [row["rank"] for row in results["rows"]]
    axes = drawing.add_subplot(1, 2, 1)
    for kind, name in SOURCES.items():
        axes.plot(ranks, [row["ms"][kind] for row in results["rows"]], marker=".", label=name)
    doubling_x(axes)
    log_y(axes)
    axes.set_ylim(top=8 * axes.get_ylim()[1])  # room for the legend
    label(axes, "loading an adapter", "rank", "ms")
    axes.legend(fontsize=7)
    axes = drawing.add_subplot(1, 2, 2)
    axes.plot(ranks, [row["image_mb"] for row in results["rows"]], marker=".", color="k")
    doubling_x(axes)
    axes.set_ylim(bottom=0)
    label(axes, "size of its image", "rank", "MB")
    return drawing


def rows(results: Results) -> list[Row]:
    lines, measured = [], results["rows"]
    first, last = measured[0], measured[-1]
    for kind, name in SOURCES.items():
        how = real(results, SIMULATED_LINK if kind == LINK else "")
        what = f"rank {first['rank']} to {last['rank']}, {name}, ms"
        paper = PAPER if kind == LINK else ""
        lines.append(Row(what, paper, f"{first['ms'][kind]:.1f} to {last['ms'][kind]:.1f}", how))
    for row in measured:
        carried = row["image_mb"] / row["ms"][LINK] * 1e3
        what = f"rank {row['rank']}: {row['image_mb']:.1f} MB, MB/s over the link"
        lines.append(Row(what, "", f"{carried:.0f}", real(results, SIMULATED_LINK)))
    return lines


FIGURE_3 = Figure(
    "3",
    "Figure 3, right: loading an adapter, by rank",
    measure,
    draw,
    rows,
    "An adapter on all linear layers of the 125 M model, by the worker's core and mover without a "
    "network, into an empty pool; the paper loads three layers' adapters of 7B into an A10. On a "
    "CPU the pool is memory as the arena is, so the link is simulated: a copier that lets "
    f"{LINK_MB_S} MB/s pass.",
)
